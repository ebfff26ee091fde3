//! Faults that need an operator: each refusal names the cause and the remedy, and no password.

use std::path::Path;
use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport, QueueType};
use jobwire_core::transport::{Control, Transport, TransportError};
use jobwire_core::{JobId, Lane};
use jobwire_tests::rabbitmqctl::User;
use jobwire_tests::{RabbitMq, RabbitMqCtl};
use uuid::Uuid;

use super::vhost::*;

/// Asserts that this is a refusal whose text contains all parts.
#[track_caller]
fn says(refused: &TransportError, parts: &[&str]) {
    assert!(
        matches!(
            refused,
            TransportError::Refused { .. } | TransportError::Setting(_)
        ),
        "{refused}"
    );
    let text = refused.to_string();
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
}

#[tokio::test]
async fn a_url_that_can_not_be_read() {
    for url in [
        "localhost:5672",
        "http://bob:hunter2@localhost",
        "amqp://bob:hunter2@:5672",
    ] {
        let refused = AmqpTransport::connect(url, AmqpOptions::default()).await;
        let refused = refused.unwrap_err();
        says(&refused, &["URL", "--broker"]);
        assert!(!refused.to_string().contains("hunter2"));
    }
}

#[tokio::test]
async fn settings_that_make_no_sense() {
    let options = AmqpOptions::default()
        .confirm_window(0)
        .hints_per_message(0);
    let refused = AmqpTransport::connect("amqp://localhost", options).await;
    says(&refused.unwrap_err(), &["window", "hints per message"]);
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_virtual_host() {
    let vhost = VirtualHost::new().await;
    let mut url = url::Url::parse(&vhost.space.url).unwrap();
    url.set_password(Some("hunter2")).unwrap();
    let refused = refused_to_connect(url.as_str(), &vhost.options()).await;
    says(&refused, &["password", "the broker's URL", url.username()]);
    assert!(!format!("{refused} {refused:?}").contains("hunter2"));

    let mut url = url::Url::parse(&vhost.space.url).unwrap();
    url.set_path("/nowhere");
    let refused = refused_to_connect(url.as_str(), &vhost.options()).await;
    says(&refused, &["nowhere", "virtual host"]);
    let secret = url.password().unwrap();
    assert!(!format!("{refused} {refused:?}").contains(secret));
    let transport = vhost.transport().await;
    assert!(!format!("{transport:?}").contains(secret));
}

#[tokio::test]
async fn a_queue_declared_otherwise() {
    let vhost = VirtualHost::new().await;
    vhost
        .stranger()
        .await
        .declare(&vhost.queue(), &[kind("quorum")])
        .await;
    let transport = vhost.transport().await;
    let remedy = [
        "x-queue-type",
        "set the queue type to quorum",
        &vhost.queue(),
    ];
    let refused = refused_to_subscribe(&transport, &vhost.lane).await;
    says(&refused, &remedy);
    says(&refused_to_publish(&transport, &vhost.lane).await, &remedy);
    // The remedies work.
    for options in [
        vhost.options().queue_type(QueueType::Quorum),
        vhost.options().declare(false),
    ] {
        let transport = connect(&vhost.space.url, options).await;
        let mut receiver = subscribe(&transport, &vhost.lane, 10).await.unwrap();
        let id = publish_at_last(&transport, &vhost.lane).await;
        arrives(&mut receiver, id).await;
    }
}

#[tokio::test]
async fn a_queue_that_is_missing_and_must_not_be_declared() {
    let vhost = VirtualHost::new().await;
    let options = vhost.options().declare(false);
    let transport = connect(&vhost.space.url, options).await;
    let remedy = [vhost.queue(), "declare".into(), "classic".into()];
    let remedy: Vec<&str> = remedy.iter().map(String::as_str).collect();
    let refused = refused_to_subscribe(&transport, &vhost.lane).await;
    says(&refused, &remedy);
    says(&refused_to_publish(&transport, &vhost.lane).await, &remedy);
}

#[tokio::test]
async fn a_lane_with_an_impossible_name() {
    let vhost = VirtualHost::new().await;
    let transport = vhost.transport().await;
    let lane = Lane::unchecked("no such/lane");
    says(&refused_to_publish(&transport, &lane).await, &["lane"]);
}

#[tokio::test]
async fn missing_rights_are_named() {
    let broker = RabbitMq::start().await;
    let lane = Lane::default();
    let queue = "jobwire.lane.default";
    let owner = connect(&broker.url(), options("jobwire")).await;
    publish_at_last(&owner, &lane).await;

    // This user may declare nothing, not even what exists.
    let bob = user(&broker, "", ".*", ".*").await;
    let transport = connect(&bob, options("jobwire")).await;
    let refused = refused_to_subscribe(&transport, &lane).await;
    says(
        &refused,
        &["'configure'", queue, "set_permissions", "declare"],
    );
    says(
        &refused_to_publish(&transport, &lane).await,
        &["'configure'", queue],
    );
    // The remedy: use only what exists.
    let options_of_a_guest = options("jobwire").declare(false);
    let guest = connect(&bob, options_of_a_guest.clone()).await;
    let mut receiver = subscribe(&guest, &lane, 10).await.unwrap();
    let id = publish_at_last(&guest, &lane).await;
    arrives(&mut receiver, id).await;
    soon("closing", guest.close(SOON)).await;

    let writer = user(&broker, ".*", ".*", "").await;
    let transport = connect(&writer, options("jobwire")).await;
    let refused = refused_to_subscribe(&transport, &lane).await;
    says(&refused, &["'read'", queue]);
    publish_at_last(&transport, &lane).await;

    let reader = user(&broker, ".*", "", ".*").await;
    let transport = connect(&reader, options("jobwire")).await;
    says(
        &refused_to_publish(&transport, &lane).await,
        &["'write'", "amq.default"],
    );
    let mut receiver = subscribe(&transport, &lane, 10).await.unwrap();
    receive_at_last(&mut receiver).await;
}

/// The rights in the command of the guide.
fn documented(user: &str) -> [String; 3] {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating/security.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let command = format!("rabbitmqctl set_permissions -p VHOST {user} ");
    let rights = guide.lines().find_map(|line| line.strip_prefix(&command));
    let rights = rights.unwrap_or_else(|| panic!("the guide lacks this command: {command}"));
    let rights: Vec<String> = rights
        .split(' ')
        .map(|right| right.trim_matches('\'').to_owned())
        .collect();
    rights.try_into().unwrap()
}

async fn documented_user(broker: &RabbitMq, name: &str) -> String {
    let [configure, write, read] = documented(name);
    user(broker, &configure, &write, &read).await
}

#[tokio::test]
async fn the_documented_rights_are_enough_and_no_more_than_needed() {
    let broker = RabbitMq::start().await;
    let owner = connect(&documented_user(&broker, "USER").await, options("jobwire")).await;
    let lane = Lane::unchecked("fresh");
    let mut receiver = subscribe(&owner, &lane, 10).await.unwrap();
    let id = publish_at_last(&owner, &lane).await;
    arrives(&mut receiver, id).await;
    drop(receiver);

    let using = options("jobwire").declare(false);
    let node = connect(&documented_user(&broker, "NODE").await, using.clone()).await;
    let producer = connect(&documented_user(&broker, "PRODUCER").await, using).await;
    let mut receiver = subscribe(&node, &lane, 10).await.unwrap();
    let id = publish_at_last(&producer, &lane).await;
    arrives(&mut receiver, id).await;
    // Each of the three receives control messages of the others.
    for (speaker, hearer) in [(&owner, &node), (&node, &producer), (&producer, &owner)] {
        let mut heard = hearer.listen();
        // A message that is sent before all listen is lost, which the protocol allows.
        soon("a control message of another process", async {
            loop {
                let word = JobId::generate();
                speaker.publisher().tell(Control::Cancel { job: word });
                let hearing = async {
                    while !matches!(heard.recv().await, Ok(Control::Cancel { job }) if job == word)
                    {
                    }
                };
                if tokio::time::timeout(Duration::from_secs(1), hearing)
                    .await
                    .is_ok()
                {
                    return;
                }
            }
        })
        .await;
    }
    // Producers receive no hints, and only the owner declares lanes.
    let refused = refused_to_subscribe(&producer, &lane).await;
    says(&refused, &["'read'", "jobwire.lane.fresh"]);
    let declaring = connect(&documented_user(&broker, "NODE").await, options("jobwire")).await;
    let refused = refused_to_subscribe(&declaring, &Lane::unchecked("new")).await;
    says(&refused, &["'configure'", "jobwire.lane.new"]);
}

/// Creates a user with these rights and returns its URL.
async fn user(broker: &RabbitMq, configure: &str, write: &str, read: &str) -> String {
    let ctl: &RabbitMqCtl = broker.ctl();
    let name = format!("user-{}", Uuid::new_v4().simple());
    ctl.add_user(&User {
        name: &name,
        password: "secret",
        vhost: "/",
        configure,
        write,
        read,
    })
    .await;
    broker.url_of(&name, "secret", "%2F")
}
