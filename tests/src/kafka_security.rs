//! A broker's secured listeners, one for each way of authentication.

use crate::certificates::{Authority, Identity};
use crate::kafka_settings::Listener;
use crate::port;
use std::path::Path;
use uuid::Uuid;

/// The user of every SASL mechanism.
pub const USER: &str = "jobwire";

/// A way of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KafkaListener {
    /// TLS without authentication of clients.
    Tls,
    /// TLS, for clients with a certificate of the broker's authority.
    MutualTls,
    /// TLS and a password, by SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN (`SASL_SSL`).
    Password,
    /// No TLS, and OAUTHBEARER with unsecured tokens (`SASL_PLAINTEXT`).
    Token,
}

const ALL: [(KafkaListener, &str, &str); 4] = [
    (KafkaListener::Tls, "TLS", "SSL"),
    (KafkaListener::MutualTls, "MUTUAL", "SSL"),
    (KafkaListener::Password, "PASSWORD", "SASL_SSL"),
    (KafkaListener::Token, "TOKEN", "SASL_PLAINTEXT"),
];

/// The data of the four listeners. Holds the contents of the certificate files, which may be
/// removed before the broker restarts.
#[derive(Clone, Debug)]
pub(crate) struct Security {
    certificate: String,
    key: String,
    authority: String,
    pub(crate) password: String,
    pub(crate) listeners: Vec<(KafkaListener, Listener)>,
}

impl Security {
    pub(crate) fn new(authority: &Authority, server: &Identity) -> Security {
        let listeners = ALL.map(|(kind, name, protocol)| {
            let port = port::free();
            let listener = Listener {
                name,
                protocol,
                port,
                advertised: port,
            };
            (kind, listener)
        });
        Security {
            certificate: read(&server.certificate),
            key: read(&server.key),
            authority: read(authority.certificate()),
            password: Uuid::new_v4().simple().to_string(),
            listeners: listeners.to_vec(),
        }
    }

    pub(crate) fn properties(&self) -> Vec<(&'static str, String)> {
        const JAAS: &str = "org.apache.kafka.common.security";
        let Security { password, .. } = self;
        vec![
            ("ssl.keystore.type", "PEM".to_owned()),
            ("ssl.keystore.certificate.chain", self.certificate.clone()),
            ("ssl.keystore.key", self.key.clone()),
            ("ssl.truststore.type", "PEM".to_owned()),
            ("ssl.truststore.certificates", self.authority.clone()),
            (
                "listener.name.mutual.ssl.client.auth",
                "required".to_owned(),
            ),
            (
                "listener.name.password.sasl.enabled.mechanisms",
                "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN".to_owned(),
            ),
            (
                "listener.name.password.scram-sha-256.sasl.jaas.config",
                format!("{JAAS}.scram.ScramLoginModule required;"),
            ),
            (
                "listener.name.password.scram-sha-512.sasl.jaas.config",
                format!("{JAAS}.scram.ScramLoginModule required;"),
            ),
            (
                "listener.name.password.plain.sasl.jaas.config",
                format!("{JAAS}.plain.PlainLoginModule required user_{USER}=\"{password}\";"),
            ),
            (
                "listener.name.token.sasl.enabled.mechanisms",
                "OAUTHBEARER".to_owned(),
            ),
            (
                "listener.name.token.oauthbearer.sasl.jaas.config",
                format!(
                    "{JAAS}.oauthbearer.OAuthBearerLoginModule required \
                     unsecuredLoginStringClaim_sub=\"broker\";"
                ),
            ),
        ]
    }

    /// Returns arguments that create the SCRAM users when the cluster's metadata is formatted.
    pub(crate) fn format_arguments(&self) -> Vec<String> {
        let Security { password, .. } = self;
        ["SCRAM-SHA-256", "SCRAM-SHA-512"]
            .into_iter()
            .flat_map(|mechanism| {
                let user = format!("{mechanism}=[name={USER},password={password}]");
                ["--add-scram".to_owned(), user]
            })
            .collect()
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}
