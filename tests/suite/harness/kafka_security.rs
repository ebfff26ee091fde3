//! Which clients a secured broker admits, and why it refuses the others.

use jobwire_tests::kafka_security::USER;
use jobwire_tests::{Authority, Identity, Kafka, KafkaListener, KafkaSettings, eventually};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const A_MOMENT: Duration = Duration::from_millis(500);

/// The party that is refused, which is the reason why a client cannot connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The client does not trust the broker.
    Broker,
    /// The broker does not trust the client.
    Client,
    /// The broker refuses the user.
    User,
}

/// Records the refusals.
#[derive(Clone, Default)]
struct Refusals(Arc<Mutex<Vec<Refusal>>>);

impl ClientContext for Refusals {
    fn error(&self, error: KafkaError, why: &str) {
        let refusal = match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::SSL) => Refusal::Broker,
            Some(RDKafkaErrorCode::Authentication) => Refusal::User,
            // In TLS 1.3 the client has ended its handshake before the broker checks the client's
            // certificate. Any other broken connection is no refusal.
            Some(_) if why.contains("SSL alert") => Refusal::Client,
            _ => return,
        };
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(refusal);
    }
}

impl ConsumerContext for Refusals {}

/// Returns whether a client with this configuration can connect, or the refusal.
async fn come_in(config: ClientConfig) -> Result<(), Refusal> {
    let refusals = Refusals::default();
    let seen = Arc::clone(&refusals.0);
    let client: BaseConsumer<Refusals> = config
        .create_with_context(refusals)
        .expect("the client's settings are sound");
    let client = Arc::new(client);
    eventually("the broker to admit or refuse the client", SOON, || {
        let (client, seen) = (Arc::clone(&client), Arc::clone(&seen));
        let ask = move || {
            if client.fetch_metadata(None, A_MOMENT).is_ok() {
                return Some(Ok(()));
            }
            // Only a poll delivers errors.
            let _ = client.poll(Duration::ZERO);
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.first().map(|&refusal| Err(refusal))
        };
        async { tokio::task::spawn_blocking(ask).await.ok().flatten() }
    })
    .await
}

fn config(address: &str, protocol: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", address)
        .set("security.protocol", protocol)
        .set("group.id", "nobody");
    config
}

fn tls(kafka: &Kafka, listener: KafkaListener, authority: &Authority) -> ClientConfig {
    let mut config = config(&kafka.address_of(listener), "ssl");
    config.set("ssl.ca.location", text(authority.certificate()));
    config
}

fn mutual(kafka: &Kafka, authority: &Authority, client: &Identity) -> ClientConfig {
    let mut config = tls(kafka, KafkaListener::MutualTls, authority);
    config
        .set("ssl.certificate.location", text(&client.certificate))
        .set("ssl.key.location", text(&client.key));
    config
}

fn password(kafka: &Kafka, authority: &Authority, mechanism: &str, password: &str) -> ClientConfig {
    let mut config = config(&kafka.address_of(KafkaListener::Password), "sasl_ssl");
    config
        .set("ssl.ca.location", text(authority.certificate()))
        .set("sasl.mechanism", mechanism)
        .set("sasl.username", USER)
        .set("sasl.password", password);
    config
}

/// The client creates its own token, with this claim for its user.
fn token(kafka: &Kafka, claim: &str) -> ClientConfig {
    let mut config = config(&kafka.address_of(KafkaListener::Token), "sasl_plaintext");
    let token = format!("principalClaimName={claim} principal={USER}");
    config
        .set("sasl.mechanism", "OAUTHBEARER")
        .set("enable.sasl.oauthbearer.unsecure.jwt", "true")
        .set("sasl.oauthbearer.config", token);
    config
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

#[tokio::test]
async fn kafka_lets_in_whom_it_should() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let kafka = Kafka::start_with(KafkaSettings::new().secured_by(&authority)).await;

    let listener = KafkaListener::Tls;
    assert_eq!(come_in(tls(&kafka, listener, &authority)).await, Ok(()));
    let answer = come_in(tls(&kafka, listener, &stranger)).await;
    assert_eq!(answer, Err(Refusal::Broker));

    let client = authority.client("client");
    let answer = come_in(mutual(&kafka, &authority, &client)).await;
    assert_eq!(answer, Ok(()));
    let answer = come_in(tls(&kafka, KafkaListener::MutualTls, &authority)).await;
    assert_eq!(answer, Err(Refusal::Client), "without a certificate");
    let forged = stranger.client("client");
    let answer = come_in(mutual(&kafka, &authority, &forged)).await;
    assert_eq!(answer, Err(Refusal::Client), "with a stranger's");

    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let right = password(&kafka, &authority, mechanism, kafka.password());
        assert_eq!(come_in(right).await, Ok(()), "{mechanism}");
        let wrong = password(&kafka, &authority, mechanism, "wrong");
        assert_eq!(come_in(wrong).await, Err(Refusal::User), "{mechanism}");
    }

    assert_eq!(come_in(token(&kafka, "sub")).await, Ok(()));
    let answer = come_in(token(&kafka, "azp")).await;
    assert_eq!(answer, Err(Refusal::User), "a token without a user");
}

#[tokio::test]
async fn a_client_finds_out_that_a_broker_is_not_whom_it_says() {
    let authority = Authority::new();
    let elsewhere = authority.server_for(&["elsewhere.example"]);
    let expired = authority.expired_server();
    let answer = async |server: &Identity| {
        let settings = KafkaSettings::new().secured_as(&authority, server);
        let kafka = Kafka::start_with(settings).await;
        come_in(tls(&kafka, KafkaListener::Tls, &authority)).await
    };
    let (elsewhere, expired) = tokio::join!(answer(&elsewhere), answer(&expired));
    assert_eq!(elsewhere, Err(Refusal::Broker));
    assert_eq!(expired, Err(Refusal::Broker));
}
