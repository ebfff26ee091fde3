//! Authentication of the client and of the brokers: TLS and SASL.
//!
//! Certificates are always verified, with the host's name; no setting turns this off. If librdkafka
//! was built without a required feature, the creation of a client fails, before a connection.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jobwire_core::transport::{BadSetting, BrokerSecurity, TransportError};
use rdkafka::ClientConfig;

use crate::endpoint::Endpoint;
use crate::mechanism::Mechanism;

/// A source of tokens for `OAUTHBEARER`. A thread of the client calls it at start and before the
/// last token expires; it may block for some seconds.
pub trait TokenSource: Send + Sync + 'static {
    /// Returns a token that is valid now.
    ///
    /// # Errors
    /// The reason, as text for people, if no token is available. The client asks again some seconds
    /// later.
    fn token(&self) -> Result<Token, String>;
}

/// A token for `OAUTHBEARER`. Its text is never shown.
#[derive(Clone)]
pub struct Token {
    /// The token itself.
    pub text: String,
    /// The subject of the token (`sub`).
    pub principal: String,
    /// The expiry, in milliseconds since 1970 UTC.
    pub ends_at_millis: i64,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("principal", &self.principal)
            .field("ends_at_millis", &self.ends_at_millis)
            .finish_non_exhaustive()
    }
}

/// A token (a JWT) in a file that another program renews, as Kubernetes does with projected service
/// account tokens. Principal and expiry are the claims `sub` and `exp`.
#[derive(Clone, Debug)]
pub struct TokenFile(pub PathBuf);

impl TokenSource for TokenFile {
    fn token(&self) -> Result<Token, String> {
        let path = self.0.display();
        let text = std::fs::read_to_string(&self.0)
            .map_err(|error| format!("the token file {path} can't be read: {error}"))?;
        let text = text.trim();
        let claims = text
            .split('.')
            .nth(1)
            .and_then(base64url)
            .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
            .ok_or_else(|| {
                format!("the token file {path} holds no JWT (three parts, separated by dots)")
            })?;
        let ends_at = claims["exp"]
            .as_f64()
            .ok_or_else(|| format!("the token in {path} has no claim `exp`"))?;
        Ok(Token {
            text: text.to_owned(),
            principal: claims["sub"].as_str().unwrap_or("jobwire").to_owned(),
            #[allow(clippy::cast_possible_truncation, reason = "milliseconds of this era")]
            ends_at_millis: (ends_at * 1_000.0) as i64,
        })
    }
}

/// Decodes base64url without padding (RFC 4648, section 5), as in a JWT.
fn base64url(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(text.len()), 0_u32, 0_u32);
    for c in text.trim_end_matches('=').bytes() {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from((bits >> held) & 0xff).ok()?);
        }
    }
    Some(bytes)
}

/// Returns the mechanism of authentication. Fails if the mechanism lacks a user or a token source.
fn proof(
    endpoint: &Endpoint,
    tokens: Option<&Arc<dyn TokenSource>>,
) -> Result<Option<Mechanism>, TransportError> {
    let with_tokens = tokens.map(|_| Mechanism::OauthBearer);
    let with_password = endpoint
        .credentials
        .as_ref()
        .map(|_| Mechanism::ScramSha512);
    let mechanism = endpoint.mechanism.or(with_tokens).or(with_password);
    match mechanism {
        Some(Mechanism::OauthBearer) if tokens.is_none() => Err(bad(
            "kafka_oauth_token_file",
            "is missing, but the broker's URL asks for OAUTHBEARER".to_owned(),
            "name the file that holds the token",
        )),
        Some(Mechanism::OauthBearer) | None => Ok(mechanism),
        Some(other) if endpoint.credentials.is_none() => Err(bad(
            "broker_url",
            format!("asks for {other} and names no user"),
            "write kafka://user:password@host",
        )),
        other => Ok(other),
    }
}

fn bad(setting: &'static str, problem: String, remedy: &str) -> TransportError {
    TransportError::Setting(BadSetting {
        setting,
        problem,
        remedy: remedy.to_owned(),
    })
}

/// Adds TLS and SASL to the configuration of a client.
pub(crate) fn apply(
    security: &BrokerSecurity,
    tokens: Option<&Arc<dyn TokenSource>>,
    endpoint: &Endpoint,
    config: &mut ClientConfig,
) -> Result<(), TransportError> {
    let hosts = endpoint.brokers.iter().map(|broker| broker.host.as_str());
    if let Some(mistake) = security.mistakes(endpoint.tls, hosts).into_iter().next() {
        return Err(mistake.into());
    }
    let mechanism = proof(endpoint, tokens)?;
    let properties = [
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
    ];
    for (property, (setting, path)) in properties.into_iter().zip(security.files()) {
        if let Some(path) = path {
            config.set(property, pem(setting, path)?);
        }
    }
    if endpoint.tls {
        config
            .set("enable.ssl.certificate.verification", "true")
            .set("ssl.endpoint.identification.algorithm", "https");
    }
    config.set(
        "security.protocol",
        match (endpoint.tls, mechanism.is_some()) {
            (false, false) => "plaintext",
            (true, false) => "ssl",
            (false, true) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        },
    );
    if let Some(mechanism) = mechanism {
        config.set("sasl.mechanisms", mechanism.as_str());
        if let Some(credentials) = &endpoint.credentials {
            config
                .set("sasl.username", &credentials.user)
                .set("sasl.password", credentials.password());
        }
    }
    Ok(())
}

/// Checks that a file is readable and holds PEM, and returns its path as text.
fn pem<'a>(setting: &'static str, path: &'a Path) -> Result<&'a str, TransportError> {
    let shown = path.display();
    let text = std::fs::read(path).map_err(|error| {
        bad(
            setting,
            format!("{shown} can't be read: {error}"),
            "name a PEM file that the process can read",
        )
    })?;
    if !text.windows(11).any(|part| part == b"-----BEGIN ") {
        return Err(bad(
            setting,
            format!("{shown} holds no PEM block (-----BEGIN …)"),
            "convert the file to PEM, for example with openssl",
        ));
    }
    path.to_str()
        .ok_or_else(|| bad(setting, format!("{shown} is not UTF-8"), "rename the file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(security: &BrokerSecurity, url: &str) -> Result<ClientConfig, TransportError> {
        let mut config = ClientConfig::new();
        apply(security, None, &Endpoint::parse(url)?, &mut config)?;
        Ok(config)
    }

    #[test]
    fn the_protocol_follows_from_what_is_given() {
        let open = BrokerSecurity::default();
        for (url, protocol, mechanism) in [
            ("kafka://localhost", "plaintext", None),
            ("kafka://localhost?tls=true", "ssl", None),
            (
                "kafka://u:p@localhost",
                "sasl_plaintext",
                Some("SCRAM-SHA-512"),
            ),
            (
                "kafka://u:p@broker?tls=true&sasl=plain",
                "sasl_ssl",
                Some("PLAIN"),
            ),
        ] {
            let config = applied(&open, url).unwrap();
            assert_eq!(config.get("security.protocol"), Some(protocol), "{url}");
            assert_eq!(config.get("sasl.mechanisms"), mechanism, "{url}");
        }
    }

    #[test]
    fn mistakes_name_the_setting() {
        let open = BrokerSecurity::default();
        let missing = BrokerSecurity {
            ca: Some("no-such.pem".into()),
            ..BrokerSecurity::default()
        };
        for (security, url, setting) in [
            (&open, "kafka://broker", "broker_url"),
            (&open, "kafka://localhost,broker", "broker_url"),
            (
                &open,
                "kafka://localhost?sasl=OAUTHBEARER",
                "kafka_oauth_token_file",
            ),
            (&open, "kafka://localhost?sasl=PLAIN", "broker_url"),
            (&missing, "kafka://localhost", "broker_tls_ca"),
            (&missing, "kafka://localhost?tls=true", "broker_tls_ca"),
        ] {
            match applied(security, url).unwrap_err() {
                TransportError::Setting(bad) => assert_eq!(bad.setting, setting, "{url}: {bad}"),
                other => panic!("{url}: {other}"),
            }
        }
    }

    #[test]
    fn a_token_file_holds_a_jwt() {
        let file = std::env::temp_dir().join(format!("token-{}", uuid::Uuid::new_v4()));
        // {"alg":"none"} . {"sub":"worker","exp":1900000000.5}
        let text = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ3b3JrZXIiLCJleHAiOjE5MDAwMDAwMDAuNX0.\n";
        std::fs::write(&file, text).unwrap();
        let token = TokenFile(file.clone()).token().unwrap();
        assert_eq!(
            (&*token.principal, token.ends_at_millis),
            ("worker", 1_900_000_000_500)
        );
        assert!(!format!("{token:?}").contains("eyJ"));
        for wrong in ["", "a.b.c", "eyJhbGciOiJub25lIn0.e30."] {
            std::fs::write(&file, wrong).unwrap();
            assert!(TokenFile(file.clone()).token().is_err(), "{wrong}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(TokenFile(file).token().is_err());
    }
}
