//! The wire format, as programs in other languages see it: docs/reference/hint-vectors.json against
//! running nodes, and docs/reference/asyncapi.json against the vectors. (The unit tests of the
//! decoder test the meaning of the vectors.) Budget: 15 s.

use std::path::Path;
use std::time::Duration;

use boon::{Compiler, Draft, SchemaIndex, Schemas};
use jobwire_core::hint::{Body, Message};
use jobwire_core::{Hint, PgStore};
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{eventually, http};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::Value;
use sqlx::types::Uuid;

use crate::jvm::{node_that_does_not_sweep, until_empty};

const SOON: Duration = Duration::from_secs(60);

fn document(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/reference")
        .join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn vectors() -> Vec<Value> {
    let vectors = document("hint-vectors.json");
    vectors["messages"].as_array().unwrap().clone()
}

fn bytes(vector: &Value) -> Vec<u8> {
    let from_hex = |hex: &str| -> Vec<u8> {
        let pair = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(pair).collect()
    };
    let part = |part: &Value| {
        let text = part["text"].as_str().map(|text| text.as_bytes().to_vec());
        let once = text.unwrap_or_else(|| from_hex(part["hex"].as_str().unwrap()));
        let times = part["times"].as_u64().unwrap_or(1);
        once.repeat(times.try_into().unwrap())
    };
    match vector["parts"].as_array() {
        Some(parts) => parts.iter().flat_map(part).collect(),
        None => vector["text"].as_str().unwrap().into(),
    }
}

/// Returns a message of every kind that may be published, and after them the hint of a job.
async fn messages(store: &PgStore) -> Vec<Vec<u8>> {
    let create = "SELECT jobwire.create_job(type => 'noop', process_instance => 'order-17')";
    let job: Uuid = sqlx::query_scalar(create)
        .fetch_one(store.pool())
        .await
        .unwrap();
    let mut hint = Hint::new(job.to_string().parse().unwrap());
    hint.instance = Some("order-17".to_owned());
    let hint = Message::hints(vec![hint]).encode();
    let vectors = vectors();
    vectors.iter().map(bytes).chain([hint]).collect()
}

async fn over_rabbitmq(space: &Space, messages: Vec<Vec<u8>>) {
    let connection = Connection::connect(&space.url, ConnectionProperties::default());
    let connection = connection.await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let confirming = channel.confirm_select(ConfirmSelectOptions::default());
    confirming.await.unwrap();
    let queue = format!("{}.lane.default", space.prefix);
    for message in messages {
        let published = channel.basic_publish(
            "".into(),
            queue.as_str().into(),
            BasicPublishOptions::default(),
            &message,
            BasicProperties::default(),
        );
        published.await.unwrap().await.unwrap();
    }
}

async fn over_kafka(space: &Space, messages: Vec<Vec<u8>>) {
    let servers = space.url.replace("kafka://", "");
    let topic = format!("{}.lane.default", space.prefix);
    let publish = move || {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", servers).set("acks", "all");
        let producer: BaseProducer = config.create().unwrap();
        for message in &messages {
            // One partition, so that the valid hint comes after all others.
            let record = BaseRecord::<(), _>::to(&topic)
                .partition(0)
                .payload(message);
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(SOON).unwrap();
    };
    tokio::task::spawn_blocking(publish).await.unwrap();
}

async fn a_node_outlives_the_vectors(
    space: Space,
    publish: impl AsyncFnOnce(&Space, Vec<Vec<u8>>),
) {
    let database = shared::postgres().await.migrated_database().await;
    let store = PgStore::connect(&database).await.unwrap();
    store.migrate().await.unwrap();
    let (_node, address) = node_that_does_not_sweep(&database, &space).await;
    let messages = messages(&store).await;
    publish(&space, messages).await;
    until_empty(&store).await;
    let vectors = vectors();
    let unreadable = vectors.iter().filter(|v| !v["unreadable"].is_null());
    let unreadable = unreadable.count();
    // On RabbitMQ several messages are on their way at once, and the valid one may be decided
    // first.
    eventually("every unreadable message to be counted", SOON, || async {
        let metrics = http::get(&address, "/metrics").await.ok()?.body;
        let name = "jobwire_hints_unreadable_total{lane=\"default\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name))?;
        (line.parse::<usize>().ok()? >= unreadable).then_some(())
    })
    .await;
}

#[tokio::test]
async fn nothing_that_is_published_to_rabbitmq_stops_a_node() {
    let space = shared::rabbitmq().await.space().await;
    a_node_outlives_the_vectors(space, over_rabbitmq).await;
}

#[tokio::test]
async fn nothing_that_is_published_to_kafka_stops_a_node() {
    let space = shared::kafka().await.space();
    a_node_outlives_the_vectors(space, over_kafka).await;
}

/// The schemas of docs/reference/asyncapi.json.
pub(crate) struct Contract {
    schemas: Schemas,
    hints: SchemaIndex,
    marker: SchemaIndex,
    event: SchemaIndex,
}

impl Contract {
    pub(crate) fn new() -> Self {
        let mut schemas = Schemas::new();
        let mut compiler = Compiler::new();
        // The schemas of AsyncAPI are a superset of draft 7.
        compiler.set_default_draft(Draft::V7);
        let url = "http://localhost/asyncapi.json";
        let document = document("asyncapi.json");
        compiler.add_resource(url, document).unwrap();
        let mut compile = |name: &str| {
            let at = format!("{url}#/components/schemas/{name}");
            compiler.compile(&at, &mut schemas).unwrap()
        };
        let (hints, marker) = (compile("HintMessage"), compile("MarkerMessage"));
        let event = compile("Event");
        Self {
            schemas,
            hints,
            marker,
            event,
        }
    }

    /// Asserts that this is an event of the event stream.
    pub(crate) fn assert_event(&self, event: &Value) {
        if let Err(problem) = self.schemas.validate(event, self.event) {
            panic!("{problem}: {event}");
        }
    }

    fn takes(&self, message: &Value) -> bool {
        let takes = |schema| self.schemas.validate(message, schema).is_ok();
        takes(self.hints) || takes(self.marker)
    }
}

#[test]
fn the_schema_takes_what_is_to_be_written_and_refuses_what_is_not_read() {
    let contract = Contract::new();
    let (mut taken, mut refused) = (0, 0);
    for vector in vectors() {
        let name = &vector["name"];
        // The schema does not cover invalid JSON.
        let Ok(message) = serde_json::from_slice(&bytes(&vector)) else {
            assert!(
                vector["means"].is_null() || vector["lenient"] == true,
                "{name}"
            );
            continue;
        };
        let too_large = vector["unreadable"] == "too_large";
        if vector["lenient"] == true || vector["beyond_schema"] == true || too_large {
            continue;
        }
        if vector["means"].is_null() {
            assert!(!contract.takes(&message), "the schema takes {name}");
            refused += 1;
        } else {
            assert!(contract.takes(&message), "the schema refuses {name}");
            taken += 1;
        }
    }
    assert!(
        taken >= 15 && refused >= 40,
        "{taken} taken, {refused} refused"
    );
}

#[test]
fn the_examples_of_the_contract_are_read_and_fit_it() {
    let contract = Contract::new();
    let document = document("asyncapi.json");
    let examples = |message: &str| {
        let examples = &document["components"]["messages"][message]["examples"];
        examples.as_array().unwrap().clone()
    };
    let read = |example: &Value| {
        assert!(contract.takes(&example["payload"]), "{example}");
        Message::decode(example["payload"].to_string().as_bytes()).unwrap()
    };
    for example in examples("hints") {
        assert!(matches!(read(&example).body, Body::Hints(hints) if hints.len() == 1));
    }
    for example in examples("event") {
        contract.assert_event(&example["payload"]);
    }
    for example in examples("marker") {
        assert!(matches!(read(&example).body, Body::Marker(_)));
    }
}
