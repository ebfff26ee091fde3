//! TLS against a real broker: trust, client certificates, and the messages for each mismatch.

use std::path::Path;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::Lane;
use jobwire_core::transport::{BrokerSecurity, Plaintext, Publisher, TransportError};
use jobwire_tests::rabbitmq::tls::{ClientCertificates, Tls};
use jobwire_tests::{Authority, Identity, RabbitMq, Scratch, eventually};

use super::secured::{Secured, as_client, trusting};
use super::vhost::*;

/// The long connect timeout is for slow machines: no test waits for it to pass.
fn secured(security: BrokerSecurity) -> AmqpOptions {
    options("jobwire").security(security).connect_timeout(SOON)
}

/// Waits until the transport has no connection, and returns the reason. A slow machine connects in
/// the background. The broker may close the connection before the reason arrives; the next attempt
/// gives the reason again.
async fn refused(url: &str, security: BrokerSecurity) -> String {
    let transport = match AmqpTransport::connect(url, secured(security)).await {
        Ok(transport) => transport,
        Err(problem) => {
            assert!(!problem.is_transient(), "{problem}");
            return problem.to_string();
        }
    };
    eventually("the reason of the refusal", SOON, || async {
        let health = Publisher::health(&transport);
        assert!(!health.publishing, "connected");
        let passing = ["no connection has been made", "hung up", "no answer within"];
        health
            .problem
            .filter(|problem| !passing.iter().any(|passing| problem.contains(passing)))
    })
    .await
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
}

async fn works(transport: &AmqpTransport) {
    until_healthy(transport).await;
    let lane = Lane::default();
    let mut receiver = subscribe(transport, &lane, 10).await.unwrap();
    let id = publish_at_last(transport, &lane).await;
    arrives(&mut receiver, id).await;
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_named() {
    let broker = Secured::shared().await;
    let url = broker.url("localhost").await;
    let transport = connect(&url, secured(trusting(broker.authority.certificate()))).await;
    works(&transport).await;
    let plain = broker
        .broker
        .ctl()
        .run(&["list_connections", "ssl", "vhost"])
        .await;
    let vhost = url.rsplit('/').next().unwrap();
    for line in plain.lines().filter(|line| line.contains(vhost)) {
        assert!(line.starts_with("true"), "not encrypted: {line}");
    }
}

#[tokio::test]
async fn a_broker_of_another_authority_is_refused() {
    let broker = Secured::shared().await;
    let url = broker.url("localhost").await;
    let remedy = ["broker_tls_ca", "localhost", "trust store", "authority"];
    // This machine does not trust the authority.
    says(&refused(&url, BrokerSecurity::default()).await, &remedy);
    // Only the named authority is trusted.
    let stranger = Authority::new();
    says(
        &refused(&url, trusting(stranger.certificate())).await,
        &remedy,
    );
    let user = url::Url::parse(&url).unwrap();
    let said = refused(&url, trusting(stranger.certificate())).await;
    assert!(!said.contains(user.password().unwrap()), "{said}");
}

#[tokio::test]
async fn a_broker_that_goes_by_another_name_is_refused() {
    let broker = Secured::shared().await;
    let url = broker.url("127.0.0.1").await;
    let said = refused(&url, trusting(broker.authority.certificate())).await;
    says(
        &said,
        &["broker_url", "another host", "localhost", "127.0.0.1"],
    );
}

#[tokio::test]
async fn a_port_without_tls_is_told_apart() {
    let broker = Secured::shared().await;
    let plain = format!("amqps://{}/", broker.broker.address());
    let plain = plain.replace("127.0.0.1", "localhost");
    let said = refused(&plain, trusting(broker.authority.certificate())).await;
    says(&said, &["broker_url", "does not speak TLS", "5671"]);
}

#[tokio::test]
async fn a_certificate_is_the_log_in() {
    let broker = Secured::shared().await;
    let (identity, url) = broker.certified().await;
    let security = as_client(broker.authority.certificate(), &identity);
    let transport = connect(&url, secured(security.clone())).await;
    works(&transport).await;
    // A user in the URL takes precedence, unless the URL sets `auth_mechanism`.
    let named = url.replace("amqps://", "amqps://nobody:hunter2@");
    let said = refused(&named, security.clone()).await;
    says(&said, &["password", "'nobody'"]);
    assert!(!said.contains("hunter2"), "{said}");
    let external = format!("{named}?auth_mechanism=external");
    works(&connect(&external, secured(security)).await).await;
}

#[tokio::test]
async fn a_certificate_without_a_user_is_told_what_to_do() {
    let broker = Secured::shared().await;
    let (_, url) = broker.certified().await;
    let unknown = broker.authority.client("no-such-user");
    let said = refused(&url, as_client(broker.authority.certificate(), &unknown)).await;
    says(&said, &["add a user", "rabbitmq_auth_mechanism_ssl"]);
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_told_what_to_do() {
    let broker = Secured::shared().await;
    let (_, url) = broker.certified().await;
    let strangers = Authority::new();
    let stranger = strangers.client("jobwire");
    let said = refused(&url, as_client(broker.authority.certificate(), &stranger)).await;
    says(&said, &["broker_tls_certificate", "refused by the broker"]);
}

#[tokio::test]
async fn files_that_can_not_be_used_are_named_at_start() {
    let authority = Authority::new();
    let (ca, client) = (authority.certificate(), authority.client("jobwire"));
    let other = authority.client("jobwire");
    let expired = authority.expired_server();
    let home = Scratch::new();
    let nonsense = home.write("nonsense.pem", "nonsense");
    let encrypted = home.write(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let missing = home.join("missing.pem");
    let with = |certificate: &Path, key: &Path| BrokerSecurity {
        certificate: Some(certificate.to_owned()),
        key: Some(key.to_owned()),
        ..trusting(ca)
    };
    for (security, parts) in [
        (
            trusting(&missing),
            ["broker_tls_ca", "missing.pem", "No such file"],
        ),
        (
            trusting(&nonsense),
            ["broker_tls_ca", "nonsense.pem", "BEGIN CERTIFICATE"],
        ),
        (
            trusting(&client.key),
            ["broker_tls_ca", "no certificate", "BEGIN CERTIFICATE"],
        ),
        (
            with(&missing, &client.key),
            ["broker_tls_certificate", "missing.pem", "No such file"],
        ),
        (
            with(&client.certificate, &nonsense),
            ["broker_tls_key", "nonsense.pem", "PRIVATE KEY"],
        ),
        (
            with(&client.certificate, &encrypted),
            ["broker_tls_key", "encrypted.key", "openssl"],
        ),
        (
            with(&client.certificate, &other.key),
            ["broker_tls_key", "not the key", "broker_tls_certificate"],
        ),
        (
            with(&expired.certificate, &expired.key),
            ["broker_tls_certificate", "expired at 2001-01-01", "renew"],
        ),
    ] {
        // No broker listens on this port: the files are checked first.
        let connecting = AmqpTransport::connect("amqps://localhost:1/", secured(security)).await;
        let problem = connecting.unwrap_err();
        assert!(matches!(problem, TransportError::Setting(_)), "{problem:?}");
        says(&problem.to_string(), &parts);
    }
}

#[tokio::test]
async fn without_tls_only_this_machine_is_spoken_to() {
    let url = "amqp://bob:hunter2@localhost,192.0.2.1:5672/jobs";
    let strict = AmqpTransport::connect(url, options("jobwire")).await;
    let problem = strict.unwrap_err().to_string();
    says(
        &problem,
        &["broker_url", "'192.0.2.1'", "amqps://", "broker_plaintext"],
    );
    assert!(!problem.contains("hunter2"), "{problem}");

    let mut allowing = options("jobwire");
    allowing.security.plaintext = Plaintext::Allow;
    allowing.connect_timeout = Duration::from_millis(100);
    let allowed = AmqpTransport::connect("amqp://bob:hunter2@192.0.2.1/jobs", allowing).await;
    assert!(allowed.is_ok(), "a broker that is away is no mistake");

    let mut ignored = options("jobwire");
    ignored.security.ca = Some("ca.pem".into());
    let ignored = AmqpTransport::connect("amqp://localhost", ignored).await;
    says(
        &ignored.unwrap_err().to_string(),
        &["broker_tls_ca", "has no effect"],
    );
}

/// Certificates are renewed while the program runs: the next connection uses the new one.
#[tokio::test]
async fn a_renewed_certificate_is_taken_up() {
    let broker = Secured::shared().await;
    let ctl = broker.broker.ctl();
    let (first, url) = broker.certified().await;
    let vhost = url.rsplit('/').next().unwrap().to_owned();
    let second_name = broker.user(&vhost).await;
    let second = broker.authority.client(&second_name);
    let ours = Identity {
        certificate: first.certificate.with_extension("ours.pem"),
        key: first.certificate.with_extension("ours.key"),
    };
    ours.become_like(&first);
    let security = as_client(broker.authority.certificate(), &ours);
    let transport = connect(&url, secured(security)).await;
    works(&transport).await;

    let close = ["close_all_connections", "--vhost", &vhost, "renewal"];
    // The key is new and the certificate is old: nothing connects, and the problem names the
    // reason.
    std::fs::copy(&second.key, &ours.key).unwrap();
    // The broker may register a connection a moment later than the client: it has to close both.
    eventually("the mismatch to be noticed", SOON, || async {
        ctl.run(&close).await;
        let health = Publisher::health(&transport);
        let closed = !health.publishing && !health.receiving;
        (closed && health.problem?.contains("not the key")).then_some(())
    })
    .await;
    ours.become_like(&second);
    works(&transport).await;
    // The broker may list a closed connection for a moment.
    eventually("only the second user to be there", SOON, || async {
        let users = ctl.run(&["list_connections", "user", "vhost"]).await;
        let mut users = users
            .lines()
            .filter(|line| line.contains(&vhost))
            .peekable();
        users.peek()?;
        users
            .all(|line| line.starts_with(&second_name))
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_broker_that_asks_for_a_certificate_and_one_that_has_a_bad_one() {
    let authority = Authority::new();
    let ca = authority.certificate();
    let tls = Tls {
        identity: authority.server(),
        clients: ClientCertificates::Required(ca.to_owned()),
    };
    let broker = RabbitMq::start_with_tls(tls.clone()).await;
    let url = broker.tls_url("localhost", "%2F").unwrap();
    let said = refused(&url, trusting(ca)).await;
    says(
        &said,
        &["broker_tls_certificate", "asks for a client certificate"],
    );
    // TLS requires the certificate; user and password log in.
    let client = as_client(ca, &authority.client("nobody"));
    works(&connect(&url, secured(client.clone())).await).await;

    let transport = connect(&url, secured(client)).await;
    works(&transport).await;
    let close = ["close_all_connections", "a test"];
    tls.rotate(&authority.expired_server(), broker.ctl()).await;
    eventually("the expired certificate to be noticed", SOON, || async {
        broker.ctl().run(&close).await;
        let problem = Publisher::health(&transport).problem?;
        problem.contains("certificate has expired").then_some(())
    })
    .await;
    tls.rotate(&authority.server(), broker.ctl()).await;
    works(&transport).await;
}
