//! TLS on a private RabbitMQ: a listener beside the plain one, and authentication by certificate.

use crate::{Identity, RabbitMqCtl};
use std::fmt::Write;
use std::path::PathBuf;

/// The TLS settings of a private RabbitMQ.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Its own certificate and key.
    pub identity: Identity,
    /// The policy for clients' certificates.
    pub clients: ClientCertificates,
}

/// Whether clients present a certificate, and which authority must have signed it.
#[derive(Clone, Debug)]
pub enum ClientCertificates {
    /// A certificate is optional. It is verified, and a client can log in with it: its common name
    /// is the user.
    Welcome(PathBuf),
    /// A certificate is required.
    Required(PathBuf),
}

/// The plugin for authentication by certificate.
pub(crate) const PLUGINS: &str = "[rabbitmq_auth_mechanism_ssl].\n";

impl Tls {
    /// Returns the lines of `rabbitmq.conf`.
    pub(crate) fn settings(&self, port: u16) -> String {
        let (authority, required) = match &self.clients {
            ClientCertificates::Welcome(authority) => (authority, false),
            ClientCertificates::Required(authority) => (authority, true),
        };
        let mut lines = String::new();
        let _ = write!(
            lines,
            "listeners.ssl.1 = 127.0.0.1:{port}\n\
             ssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\n\
             ssl_options.cacertfile = {}\n\
             ssl_options.verify = verify_peer\n\
             ssl_options.fail_if_no_peer_cert = {required}\n\
             ssl_cert_login_from = common_name\n\
             auth_mechanisms.1 = PLAIN\n\
             auth_mechanisms.2 = EXTERNAL\n",
            self.identity.certificate.display(),
            self.identity.key.display(),
            authority.display(),
        );
        lines
    }

    /// Replaces the contents of the first certificate's files with another certificate, as an
    /// administrator would. It is used from the next handshake on.
    ///
    /// # Panics
    /// If the files can't be written.
    pub async fn rotate(&self, other: &Identity, ctl: &RabbitMqCtl) {
        self.identity.become_like(other);
        ctl.run(&["eval", "ok = ssl:clear_pem_cache()."]).await;
    }
}
