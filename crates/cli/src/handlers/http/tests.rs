//! Tests of the handler against a local service.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use jobwire_core::Verdict;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Answers every call with the same text and keeps the requests.
struct Service {
    address: SocketAddr,
    received: Arc<Mutex<Vec<String>>>,
}

impl Service {
    async fn answering(answer: impl Into<String>) -> Self {
        let answer = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let calls = received.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while !complete(&request) {
                    match stream.read(&mut buffer).await {
                        Ok(n) if n > 0 => request.extend_from_slice(&buffer[..n]),
                        _ => break,
                    }
                }
                calls
                    .lock()
                    .unwrap()
                    .push(String::from_utf8_lossy(&request).into_owned());
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { address, received }
    }

    fn url(&self) -> String {
        format!("http://{}/paid", self.address)
    }

    async fn call(&self) -> HandlerResult<Outcome> {
        call("127.0.0.1", json!({"url": self.url()})).await
    }
}

fn complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|l| {
        l.to_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    body.len() >= length.unwrap_or(0)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

async fn call(allowed: &str, payload: Value) -> HandlerResult<Outcome> {
    let allowed = AllowList::parse(allowed.split(',').filter(|a| !a.is_empty())).unwrap();
    HttpHandler::new(allowed)
        .call(JobId::generate(), Fence::new(7), &payload.to_string())
        .await
}

#[tokio::test]
async fn any_2xx_is_done() {
    for status in ["200 OK", "201 Created", "204 No Content"] {
        let service = Service::answering(answer(status, "", "")).await;
        assert!(
            matches!(service.call().await, Ok(Outcome::Done)),
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_call_says_which_job_and_which_lock_it_is_of() {
    let service = Service::answering(answer("200 OK", "", "")).await;
    let id = JobId::generate();
    let handler = HttpHandler::new(AllowList::parse(["127.0.0.1"]).unwrap());
    let payload =
        json!({"url": service.url(), "headers": {"X-Tenant": "a"}, "body": {"order": 17}});
    handler
        .call(id, Fence::new(7), &payload.to_string())
        .await
        .unwrap();
    let sent = service.received.lock().unwrap().join("").to_lowercase();
    assert!(sent.starts_with("post /paid "), "{sent}");
    for part in [
        format!("idempotency-key: {id}"),
        "jobwire-fence: 7".to_owned(),
        "x-tenant: a".to_owned(),
        "content-type: application/json".to_owned(),
        format!("host: {}", service.address),
        "{\"order\":17}".to_owned(),
    ] {
        assert!(sent.contains(&part), "{part} in {sent}");
    }
}

#[tokio::test]
async fn a_busy_service_is_asked_again_when_it_says() {
    let later = (Utc::now() + chrono::Duration::seconds(100))
        .to_rfc2822()
        .replace("+0000", "GMT");
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        for (after, range) in [
            ("20", 20..=20),
            ("0", 1..=1),
            (later.as_str(), 21..=100),
            ("99999999", 86400..=86400),
        ] {
            let service =
                Service::answering(answer(status, &format!("Retry-After: {after}\r\n"), "")).await;
            match service.call().await {
                Ok(Outcome::Snooze(wait)) => {
                    assert!(range.contains(&wait.as_secs()), "{after}: {wait:?}")
                }
                other => panic!("{status}, {after}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn what_may_pass_is_retried_and_what_may_not_is_given_up() {
    for (status, retried) in [
        ("500 Internal Server Error", true),
        ("502 Bad Gateway", true),
        ("503 Service Unavailable", true),
        ("429 Too Many Requests", true),
        ("408 Request Timeout", true),
        ("400 Bad Request", false),
        ("401 Unauthorized", false),
        ("404 Not Found", false),
        ("410 Gone", false),
        ("422 Unprocessable Entity", false),
    ] {
        let service = Service::answering(answer(status, "", "because")).await;
        let error = service.call().await.unwrap_err();
        assert_eq!(error.verdict == Verdict::Retry(None), retried, "{status}");
        assert_eq!(
            error.verdict == Verdict::Unrecoverable,
            !retried,
            "{status}"
        );
        assert!(
            error.message.contains(status) && error.message.contains("because"),
            "{}",
            error.message
        );
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let target = Service::answering(answer("200 OK", "", "")).await;
    let location = format!("Location: {}\r\n", target.url());
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "307 Temporary Redirect",
    ] {
        let service = Service::answering(answer(status, &location, "")).await;
        let error = service.call().await.unwrap_err();
        assert_eq!(error.verdict, Verdict::Unrecoverable);
        assert!(
            error.message.contains("redirect to") && error.message.contains(&target.url()),
            "{}",
            error.message
        );
    }
    assert!(target.received.lock().unwrap().is_empty());
}

#[tokio::test]
async fn nothing_is_called_that_was_not_allowed() {
    let service = Service::answering(answer("200 OK", "", "")).await;
    let port = service.address.port();
    for allowed in [
        "",
        "api.example.org",
        "127.0.0.2",
        "localhost",
        "127.0.0.1:1",
        "*.0.0.1.example.org",
    ] {
        let error = call(allowed, json!({"url": service.url()}))
            .await
            .unwrap_err();
        // Another node may be allowed to.
        assert_eq!(error.verdict, Verdict::Retry(None), "{allowed}");
        assert!(
            error.message.contains("--http-allow-hosts"),
            "{}",
            error.message
        );
    }
    assert!(service.received.lock().unwrap().is_empty());
    for allowed in ["127.0.0.1", &format!("127.0.0.1:{port}")] {
        assert!(
            call(allowed, json!({"url": service.url()})).await.is_ok(),
            "{allowed}"
        );
    }
}

#[tokio::test]
async fn localhost_is_called_where_it_is_named() {
    let service = Service::answering(answer("200 OK", "", "")).await;
    let url = format!("http://localhost:{}/", service.address.port());
    assert!(call("localhost", json!({"url": url})).await.is_ok());
}

#[tokio::test]
async fn an_allowed_name_with_a_private_address_is_refused() {
    let service = Service::answering(answer("200 OK", "", "")).await;
    let inside =
        PublicResolver::asking(|_| Box::pin(async { Ok(vec!["127.0.0.1:0".parse().unwrap()]) }));
    let handler = HttpHandler::build(AllowList::parse(["*.example.org"]).unwrap(), inside);
    let payload = json!({"url": format!("http://inside.example.org:{}/", service.address.port())})
        .to_string();
    let error = handler
        .call(JobId::generate(), Fence::new(1), &payload)
        .await
        .unwrap_err();
    // On another node the name may resolve to a public address.
    assert_eq!(error.verdict, Verdict::Retry(None), "{}", error.message);
    assert!(
        error.message.contains("private address 127.0.0.1"),
        "{}",
        error.message
    );
    assert!(service.received.lock().unwrap().is_empty());
}

#[tokio::test]
async fn network_trouble_is_retried() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = free.local_addr().unwrap();
    drop(free);
    let error = call("127.0.0.1", json!({"url": format!("http://{nobody}/")}))
        .await
        .unwrap_err();
    assert_eq!(error.verdict, Verdict::Retry(None), "{}", error.message);

    let service = Service::answering("nonsense").await;
    let error = tokio::time::timeout(Duration::from_secs(60), service.call())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.verdict, Verdict::Retry(None), "{}", error.message);
}

#[tokio::test]
async fn only_the_beginning_of_a_large_answer_is_read() {
    let service = Service::answering(answer("400 Bad Request", "", &"x".repeat(300_000))).await;
    let error = service.call().await.unwrap_err();
    assert!(
        error.message.len() < ANSWER_SHOWN + 100,
        "{}",
        error.message.len()
    );
}

/// The status has decided, so a repetition would only send the request again.
#[tokio::test]
async fn a_body_that_never_comes_changes_no_verdict() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !complete(&request) {
            stream.read_buf(&mut request).await.unwrap();
        }
        let head = "HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\nno";
        stream.write_all(head.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    let allowed = AllowList::parse(["127.0.0.1"]).unwrap();
    let payload = json!({ "url": url }).to_string();
    let called = HttpHandler::new(allowed)
        .call(JobId::generate(), Fence::new(1), &payload)
        .await;
    let error = called.unwrap_err();
    assert_eq!(error.verdict, Verdict::Unrecoverable, "{}", error.message);
    assert!(
        error.message.ends_with("400 Bad Request: no"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn an_answer_forges_no_line_and_moves_no_cursor() {
    let body = "no\n2026-01-01 INFO all is well\u{1b}[2J";
    let service = Service::answering(answer("400 Bad Request", "", body)).await;
    let error = service.call().await.unwrap_err();
    assert!(
        error
            .message
            .contains(r"no\n2026-01-01 INFO all is well\u{1b}[2J"),
        "{}",
        error.message
    );
    assert!(!error.message.chars().any(plain::is_active));
}
