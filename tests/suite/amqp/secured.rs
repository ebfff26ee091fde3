//! A broker with TLS, its authority, and its users.

use std::path::Path;

use jobwire_core::transport::BrokerSecurity;
use jobwire_tests::rabbitmq::tls::{ClientCertificates, Tls};
use jobwire_tests::rabbitmqctl::User;
use jobwire_tests::{Authority, Identity, RabbitMq};
use tokio::sync::OnceCell;
use uuid::Uuid;

/// A broker with a private authority. It checks client certificates and does not require them.
pub(super) struct Secured {
    pub(super) authority: Authority,
    pub(super) broker: RabbitMq,
}

impl Secured {
    /// Returns the broker that these tests share.
    pub(super) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Secured> = OnceCell::const_new();
        SHARED
            .get_or_init(|| async {
                let authority = Authority::new();
                let broker = RabbitMq::start_with_tls(Tls {
                    // The certificate is not valid for 127.0.0.1.
                    identity: authority.server_for(&["localhost"]),
                    clients: ClientCertificates::Welcome(authority.certificate().to_owned()),
                })
                .await;
                Self { authority, broker }
            })
            .await
    }

    /// Creates a virtual host and returns its URL with user and password, under this host name.
    pub(super) async fn url(&self, host: &str) -> String {
        let vhost = self.broker.ctl().create_vhost().await;
        self.broker.tls_url(host, &vhost).unwrap()
    }

    /// Returns a certificate for a new user of a new virtual host, and a URL without a user.
    pub(super) async fn certified(&self) -> (Identity, String) {
        let ctl = self.broker.ctl();
        let vhost = ctl.create_vhost().await;
        let name = self.user(&vhost).await;
        let url = format!(
            "amqps://localhost:{}/{vhost}",
            self.broker.tls_port().unwrap()
        );
        (self.authority.client(&name), url)
    }

    pub(super) async fn user(&self, vhost: &str) -> String {
        let name = format!("user-{}", Uuid::new_v4().simple());
        let user = User {
            name: &name,
            // The password is never used.
            password: &Uuid::new_v4().simple().to_string(),
            vhost,
            configure: ".*",
            write: ".*",
            read: ".*",
        };
        self.broker.ctl().add_user(&user).await;
        name
    }
}

pub(super) fn trusting(authority: &Path) -> BrokerSecurity {
    BrokerSecurity {
        ca: Some(authority.to_owned()),
        ..BrokerSecurity::default()
    }
}

pub(super) fn as_client(authority: &Path, identity: &Identity) -> BrokerSecurity {
    BrokerSecurity {
        certificate: Some(identity.certificate.clone()),
        key: Some(identity.key.clone()),
        ..trusting(authority)
    }
}
