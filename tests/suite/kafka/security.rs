//! TLS and SASL against a real broker: which clients are accepted, and which errors the others get.

use std::path::Path;

use jobwire_core::transport::{BrokerSecurity, Transport, TransportError};
use jobwire_core::{Hint, JobId, Lane};
use jobwire_kafka::{KafkaOptions, KafkaTransport, TokenFile};
use jobwire_tests::kafka_security::USER;
use jobwire_tests::{
    Authority, Identity, Kafka, KafkaListener, KafkaSettings, Scratch, eventually,
};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::fleet::*;
use super::refused::says;

fn trusting(authority: &Authority) -> BrokerSecurity {
    BrokerSecurity {
        ca: Some(authority.certificate().to_owned()),
        ..BrokerSecurity::default()
    }
}

fn known_as(authority: &Authority, client: &Identity) -> BrokerSecurity {
    BrokerSecurity {
        certificate: Some(client.certificate.clone()),
        key: Some(client.key.clone()),
        ..trusting(authority)
    }
}

fn secured(security: BrokerSecurity) -> KafkaOptions {
    options().security(security)
}

fn prefix() -> String {
    format!("secured-{}", Uuid::new_v4().simple())
}

/// Asserts that everything works: topics are created, hints go and come, settled hints are
/// committed, and markers return.
async fn works(url: &str, options: KafkaOptions) {
    let transport = connect_with(url, options).await;
    let lane = Lane::default();
    let mut heard = transport.listen();
    let mut receiver = subscribe(&transport, 8).await;
    let id = JobId::generate();
    let publisher = transport.publisher();
    eventually("a hint to be taken", HEALED, || async {
        publisher.publish(&lane, vec![Hint::new(id)]).await.ok()
    })
    .await;
    let taken = take(&mut receiver, 1).await;
    assert_eq!(ids(&taken), [id]);
    receiver.settle(&tickets(&taken)).await;
    let marker = jobwire_core::hint::Marker {
        number: 1,
        node: jobwire_core::NodeId::generate(),
    };
    eventually("a marker to be taken", HEALED, || async {
        publisher.publish_marker(&lane, marker).await.ok()
    })
    .await;
    soon("the marker", async {
        while !matches!(
            heard.recv().await,
            Ok(jobwire_core::transport::Control::MarkerBack { marker: back, .. }) if back == marker
        ) {}
    })
    .await;
    transport.close(std::time::Duration::from_secs(5)).await;
}

async fn refused(url: &str, options: KafkaOptions) -> TransportError {
    // A broker whose first answer is slow counts as away, which is no refusal.
    refusal("the brokers to refuse", async || {
        KafkaTransport::connect(url, options.clone()).await
    })
    .await
}

/// The broker that these tests share, its authority, and an authority that it does not trust.
struct Secured {
    broker: Kafka,
    authority: Authority,
    stranger: Authority,
}

impl Secured {
    async fn shared() -> &'static Secured {
        static SHARED: OnceCell<Secured> = OnceCell::const_new();
        SHARED
            .get_or_init(async || {
                let authority = Authority::new();
                let settings = KafkaSettings::new().secured_by(&authority);
                Secured {
                    broker: Kafka::start_with(settings).await,
                    authority,
                    stranger: Authority::new(),
                }
            })
            .await
    }

    fn at(&self, listener: KafkaListener, user: &str, parameters: &str) -> String {
        let address = self.broker.address_of(listener);
        format!("kafka://{user}{address}/{}{parameters}", prefix())
    }
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_named_and_no_other() {
    let fleet = Secured::shared().await;
    let url = fleet.at(KafkaListener::Tls, "", "?tls=true");
    works(&url, secured(trusting(&fleet.authority))).await;
    let unknown = refused(&url, secured(trusting(&fleet.stranger))).await;
    says(&unknown, &["certificate", "broker_tls_ca"]);
}

#[tokio::test]
async fn a_certificate_of_the_right_authority_opens_the_door() {
    let fleet = Secured::shared().await;
    let url = fleet.at(KafkaListener::MutualTls, "", "?tls=true");
    let client = fleet.authority.client("jobwire");
    works(&url, secured(known_as(&fleet.authority, &client))).await;
    let nobody = refused(&url, secured(trusting(&fleet.authority))).await;
    says(&nobody, &["broker_tls_certificate"]);
    let forged = fleet.stranger.client("jobwire");
    let forged = refused(&url, secured(known_as(&fleet.authority, &forged))).await;
    says(&forged, &["broker_tls_certificate"]);
}

async fn password(mechanism: &str) {
    let fleet = Secured::shared().await;
    let parameters = format!("?tls=true&sasl={mechanism}");
    let user = format!("{USER}:{}@", fleet.broker.password());
    let url = fleet.at(KafkaListener::Password, &user, &parameters);
    works(&url, secured(trusting(&fleet.authority))).await;
    let user = format!("{USER}:hunter2@");
    let url = fleet.at(KafkaListener::Password, &user, &parameters);
    let wrong = refused(&url, secured(trusting(&fleet.authority))).await;
    says(&wrong, &["user and password"]);
    assert!(!format!("{wrong} {wrong:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_password_is_proved_by_scram_sha_256() {
    password("SCRAM-SHA-256").await;
}

#[tokio::test]
async fn a_password_is_proved_by_scram_sha_512() {
    password("SCRAM-SHA-512").await;
}

#[tokio::test]
async fn a_password_is_shown_over_tls() {
    password("PLAIN").await;
}

#[tokio::test]
async fn a_token_from_a_file_is_taken_and_a_bad_one_refused() {
    let fleet = Secured::shared().await;
    let scratch = Scratch::new();
    let with_token = |name: &str, claim: &str| {
        let tokens = TokenFile(scratch.write(name, token(claim)));
        options().tokens(Some(std::sync::Arc::new(tokens)))
    };
    let url = fleet.at(KafkaListener::Token, "", "");
    // With tokens the transport uses topics and does not create them.
    let transport = connect_with(&url, with_token("good", "sub")).await;
    let hint = || vec![Hint::new(JobId::generate())];
    let missing = refusal("the missing topic to be reported", async || {
        let publisher = transport.publisher();
        publisher.publish(&Lane::default(), hint()).await
    });
    says(&missing.await, &["lane.default", "create it"]);
    drop(transport);
    let (_, prefix) = url.rsplit_once('/').unwrap();
    for topic in ["lane.default", "control"] {
        let admin = fleet.broker.admin();
        admin.create_topic(&format!("{prefix}.{topic}"), 1).await;
    }
    works(&url, with_token("good", "sub")).await;
    let denied = refused(&url, with_token("bad", "azp")).await;
    says(&denied, &["token"]);
}

/// The broker's certificate is for another name.
#[tokio::test]
async fn a_kafka_that_is_not_whom_it_says_is_refused() {
    let authority = Authority::new();
    let elsewhere = authority.server_for(&["elsewhere.example"]);
    let settings = KafkaSettings::new().secured_as(&authority, &elsewhere);
    let broker = Kafka::start_with(settings).await;
    let address = broker.address_of(KafkaListener::Tls);
    let url = format!("kafka://{address}/{}?tls=true", prefix());
    let wrong = refused(&url, secured(trusting(&authority))).await;
    says(&wrong, &["certificate", "host"]);
}

/// A wrong password is reported at the start of the program, without the password.
#[tokio::test]
async fn the_program_tells_of_a_wrong_password_and_not_the_password() {
    let authority = Authority::new();
    let broker = Kafka::start_with(KafkaSettings::new().secured_by(&authority)).await;
    let fleet = Fleet::on(&broker.url()).await;
    let address = broker.address_of(KafkaListener::Password);
    let url = format!("kafka://{USER}:hunter2@{address}/{}?tls=true", prefix());
    let ca: &Path = authority.certificate();
    // A broker whose first answer is slow counts as away; then the node starts.
    let said = eventually("the node to be refused", HEALED, async || {
        let mut program = fleet
            .program()
            .env("JOBWIRE_BROKER_URL", &url)
            .env("JOBWIRE_BROKER_TLS_CA", ca)
            .env("JOBWIRE_LOG", "debug")
            .start();
        let status = eventually("its end, or its start", HEALED, || {
            let lines = program.lines().all();
            let started = lines.iter().any(|line| line.contains("is ready"));
            let ended = program.ended().map(Some);
            async move { ended.or(started.then_some(None)) }
        });
        let status = status.await;
        let said = program.lines().all().join("\n");
        assert!(!said.contains("hunter2"), "{said}");
        let status = status?;
        program.exit(HEALED).await;
        assert!(!status.success());
        Some(program.lines().all().join("\n"))
    })
    .await;
    assert!(said.contains("user and password"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

/// Returns an unsigned JWT, as Kafka's own validator for tests accepts it.
fn token(claim: &str) -> String {
    let now = chrono::Utc::now().timestamp();
    let claims = format!(r#"{{"{claim}":"{USER}","iat":{now},"exp":{}}}"#, now + 3600);
    format!(
        "{}.{}.",
        base64url(br#"{"alg":"none"}"#),
        base64url(claims.as_bytes())
    )
}

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let bits = part
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - part.len()));
        for digit in 0..=part.len() {
            let at = (bits >> (18 - 6 * digit)) & 63;
            text.push(char::from(DIGITS[at as usize]));
        }
    }
    text
}
