//! A broker that speaks TLS, its authority, and who may come in.

use std::path::Path;

use jobwire_core::transport::BrokerSecurity;
use jobwire_tests::rabbitmq::tls::{ClientCertificates, Tls};
use jobwire_tests::rabbitmqctl::User;
use jobwire_tests::{Authority, Identity, RabbitMq};
use tokio::sync::OnceCell;
use uuid::Uuid;

/// A broker with a private authority, which looks at certificates and does not ask for them.
pub(super) struct Secured {
    pub(super) authority: Authority,
    pub(super) broker: RabbitMq,
}

impl Secured {
    /// The one that the tests here share.
    pub(super) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Secured> = OnceCell::const_new();
        SHARED
            .get_or_init(|| async {
                let authority = Authority::new();
                let broker = RabbitMq::start_with_tls(Tls {
                    // Not for 127.0.0.1.
                    identity: authority.server_for(&["localhost"]),
                    clients: ClientCertificates::Welcome(authority.certificate().to_owned()),
                })
                .await;
                Self { authority, broker }
            })
            .await
    }

    /// A fresh virtual host, with user and password, under this name of the machine.
    pub(super) async fn url(&self, host: &str) -> String {
        let vhost = self.broker.ctl().create_vhost().await;
        self.broker.tls_url(host, &vhost).unwrap()
    }

    /// A certificate for a fresh user of a fresh virtual host, and the URL that names no user.
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
            // Nobody ever says it.
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
