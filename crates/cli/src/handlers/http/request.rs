//! The payload of an `http` job, and its checks before anything is sent.

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use url::Url;

/// Headers that the handler or the connection sets; a payload may not set them.
const RESERVED: [&str; 8] = [
    "host",
    "idempotency-key",
    "jobwire-fence",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "te",
];

/// Maximum number and bytes of the headers of one call; servers refuse more.
const MOST_HEADERS: usize = 64;
const MOST_HEADER_BYTES: usize = 16 * 1024;

/// The mistake in a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadField {
    /// A field of the payload.
    #[error("field `{field}` of the payload {problem}; {remedy}")]
    Field {
        field: String,
        problem: String,
        remedy: &'static str,
    },
    /// The payload itself.
    #[error(
        "the payload is not an object; give, for example, {{\"url\": \
         \"https://api.example.org/paid\"}}"
    )]
    NoObject,
}

/// The request to send.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) url: Url,
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<String>,
}

fn bad<T>(
    field: impl Into<String>,
    problem: impl Into<String>,
    remedy: &'static str,
) -> Result<T, BadField> {
    Err(BadField::Field {
        field: field.into(),
        problem: problem.into(),
        remedy,
    })
}

impl Request {
    pub(super) fn parse(payload: &Value) -> Result<Self, BadField> {
        let Value::Object(fields) = payload else {
            return Err(BadField::NoObject);
        };
        if let Some(field) = fields
            .keys()
            .find(|f| !["url", "method", "headers", "body"].contains(&f.as_str()))
        {
            return bad(
                field,
                "is not known",
                "use `url`, `method`, `headers` and `body`",
            );
        }
        let url = url(fields.get("url"))?;
        let body = match fields.get("body") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some((text.clone(), false)),
            Some(json) => Some((json.to_string(), true)),
        };
        let method = method(fields.get("method"), body.is_some())?;
        let mut headers = headers(fields.get("headers"))?;
        if body.as_ref().is_some_and(|(_, is_json)| *is_json) {
            headers
                .entry(reqwest::header::CONTENT_TYPE)
                .or_insert(HeaderValue::from_static("application/json"));
        }
        Ok(Self {
            url,
            method,
            headers,
            body: body.map(|(text, _)| text),
        })
    }
}

fn url(value: Option<&Value>) -> Result<Url, BadField> {
    const REMEDY: &str = "give, for example, \"https://api.example.org/paid\"";
    let text = match value {
        Some(Value::String(text)) => text,
        Some(_) => return bad("url", "is not a string", REMEDY),
        None => return bad("url", "is missing", REMEDY),
    };
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => return bad("url", format!("can't be read: {error}"), REMEDY),
    };
    if !matches!(url.scheme(), "https" | "http") {
        return bad(
            "url",
            format!("has the scheme `{}`", url.scheme()),
            "use https or http",
        );
    }
    if !url.username().is_empty() || url.password().is_some() {
        return bad(
            "url",
            "contains a user or a password",
            "send them in the header `Authorization`",
        );
    }
    Ok(url)
}

fn method(value: Option<&Value>, has_body: bool) -> Result<Method, BadField> {
    const REMEDY: &str = "use GET, HEAD, POST, PUT, PATCH or DELETE";
    match value {
        None | Some(Value::Null) if has_body => Ok(Method::POST),
        None | Some(Value::Null) => Ok(Method::GET),
        Some(Value::String(name)) => match name.to_ascii_uppercase().as_str() {
            "GET" => Ok(Method::GET),
            "HEAD" => Ok(Method::HEAD),
            "POST" => Ok(Method::POST),
            "PUT" => Ok(Method::PUT),
            "PATCH" => Ok(Method::PATCH),
            "DELETE" => Ok(Method::DELETE),
            _ => bad("method", format!("is `{}`", name.escape_debug()), REMEDY),
        },
        Some(_) => bad("method", "is not a string", REMEDY),
    }
}

fn headers(value: Option<&Value>) -> Result<HeaderMap, BadField> {
    const REMEDY: &str = "give an object of strings, for example {\"Accept\": \"text/plain\"}";
    let fields = match value {
        None | Some(Value::Null) => return Ok(HeaderMap::new()),
        Some(Value::Object(fields)) => fields,
        Some(_) => return bad("headers", "is not an object", REMEDY),
    };
    if fields.len() > MOST_HEADERS {
        return bad(
            "headers",
            format!(
                "has {} entries; the maximum is {MOST_HEADERS}",
                fields.len()
            ),
            "leave some out",
        );
    }
    let size = |(name, value): (&String, &Value)| name.len() + value.as_str().map_or(0, str::len);
    let bytes: usize = fields.iter().map(size).sum();
    if bytes > MOST_HEADER_BYTES {
        return bad(
            "headers",
            format!("is {bytes} bytes long; the maximum is {MOST_HEADER_BYTES}"),
            "send large values in the body",
        );
    }
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let field = || format!("headers.{}", name.escape_debug());
        let Ok(key) = HeaderName::from_bytes(name.as_bytes()) else {
            return bad(field(), "is not the name of a header", REMEDY);
        };
        if RESERVED.contains(&key.as_str()) {
            return bad(field(), "is set by Jobwire", "leave it out");
        }
        let Some(text) = value.as_str() else {
            return bad(field(), "is not a string", REMEDY);
        };
        // The message does not include the value, which may be a secret.
        let Ok(value) = HeaderValue::from_str(text) else {
            return bad(
                field(),
                "has a value that is not allowed in a header",
                "use printable ASCII",
            );
        };
        headers.append(key, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problem(payload: Value) -> String {
        Request::parse(&payload).unwrap_err().to_string()
    }

    #[test]
    fn a_url_is_enough_and_a_body_makes_it_a_post() {
        let request = Request::parse(&json!({"url": "https://a.org/x"})).unwrap();
        assert_eq!((request.method, request.body), (Method::GET, None));
        let request = Request::parse(&json!({"url": "https://a.org/x", "body": {"a": 1}})).unwrap();
        assert_eq!(
            (request.method, request.body.as_deref()),
            (Method::POST, Some("{\"a\":1}"))
        );
        assert_eq!(request.headers["content-type"], "application/json");
        let request =
            Request::parse(&json!({"url": "https://a.org", "method": "put", "body": "x"})).unwrap();
        assert_eq!(
            (request.method, request.body.as_deref()),
            (Method::PUT, Some("x"))
        );
        assert!(request.headers.is_empty());
    }

    #[test]
    fn each_bad_field_is_named_with_the_remedy() {
        for (payload, field) in [
            (json!({}), "url"),
            (json!({"url": 1}), "url"),
            (json!({"url": "nowhere"}), "url"),
            (json!({"url": "file:///etc/passwd"}), "url"),
            (json!({"url": "https://me:secret@a.org"}), "url"),
            (json!({"url": "https://a.org", "method": "TRACE"}), "method"),
            (json!({"url": "https://a.org", "method": 1}), "method"),
            (json!({"url": "https://a.org", "headers": []}), "headers"),
            (
                json!({"url": "https://a.org", "headers": (0..65).map(|n| (format!("a{n}"), "x")).collect::<std::collections::HashMap<_, _>>()}),
                "headers",
            ),
            (
                json!({"url": "https://a.org", "headers": {"A": "x".repeat(20_000)}}),
                "headers",
            ),
            (
                json!({"url": "https://a.org", "headers": {"a b": "x"}}),
                "headers.a b",
            ),
            (
                json!({"url": "https://a.org", "headers": {"A": 1}}),
                "headers.A",
            ),
            (
                json!({"url": "https://a.org", "headers": {"A": "x\r\nB: y"}}),
                "headers.A",
            ),
            (
                json!({"url": "https://a.org", "headers": {"HOST": "x"}}),
                "headers.HOST",
            ),
            (
                json!({"url": "https://a.org", "headers": {"Idempotency-Key": "x"}}),
                "headers.Idempotency-Key",
            ),
            (
                json!({"url": "https://a.org", "headers": {"jobwire-fence": "x"}}),
                "headers.jobwire-fence",
            ),
            (json!({"url": "https://a.org", "boby": "x"}), "boby"),
        ] {
            let said = problem(payload.clone());
            assert!(
                said.starts_with(&format!("field `{field}` ")) && said.contains("; "),
                "{payload}: {said}"
            );
            assert!(!said.contains("secret"), "{said}");
        }
        let said = problem(json!([]));
        assert!(
            said.starts_with("the payload is not an object; give"),
            "{said}"
        );
    }
}
