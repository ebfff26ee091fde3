//! TLS on a private RabbitMQ: a listener beside the plain one, and logging in by certificate.

use crate::{Identity, RabbitMqCtl};
use std::fmt::Write;
use std::path::PathBuf;

/// How a private RabbitMQ speaks TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Its own certificate and key.
    pub identity: Identity,
    /// What it makes of its clients' certificates.
    pub clients: ClientCertificates,
}

/// Whether clients show a certificate, and who must have signed it.
#[derive(Clone, Debug)]
pub enum ClientCertificates {
    /// They may; then it is verified, and a client can log in by it: its common name is the user.
    Welcome(PathBuf),
    /// They must.
    Required(PathBuf),
}

/// Logging in by certificate is a plugin.
pub(crate) const PLUGINS: &str = "[rabbitmq_auth_mechanism_ssl].\n";

impl Tls {
    /// The lines of `rabbitmq.conf`.
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

    /// Puts another certificate into the files of the first, as an administrator would; it
    /// is shown from the next handshake on.
    ///
    /// # Panics
    /// If the files can't be written.
    pub async fn rotate(&self, other: &Identity, ctl: &RabbitMqCtl) {
        self.identity.become_like(other);
        ctl.run(&["eval", "ok = ssl:clear_pem_cache()."]).await;
    }
}
