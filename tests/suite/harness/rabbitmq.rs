use jobwire_tests::{RabbitMq, rabbitmqctl, shared};
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};

async fn channel(url: &str) -> lapin::Result<Channel> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    connection.create_channel().await
}

async fn declare(
    channel: &Channel,
    queue: &str,
    options: QueueDeclareOptions,
) -> lapin::Result<()> {
    channel
        .queue_declare(queue.into(), options, FieldTable::default())
        .await
        .map(drop)
}

const DURABLE: QueueDeclareOptions = QueueDeclareOptions {
    passive: false,
    durable: true,
    exclusive: false,
    auto_delete: false,
    nowait: false,
};

const PASSIVE: QueueDeclareOptions = QueueDeclareOptions {
    passive: true,
    ..DURABLE
};

#[tokio::test]
async fn each_test_has_a_space_of_its_own() {
    let broker = shared::rabbitmq().await;
    let (one, other) = (broker.space().await, broker.space().await);
    assert_ne!(one.prefix, other.prefix);
    let queue = format!("{}mine", one.prefix);
    let channel_of_one = channel(&one.url).await.expect("a channel");
    declare(&channel_of_one, &queue, DURABLE)
        .await
        .expect("a queue");
    if broker.ctl().is_some() {
        let channel_of_other = channel(&other.url).await.expect("a channel");
        declare(&channel_of_other, &queue, PASSIVE)
            .await
            .expect_err("not in this host");
    }
}

#[tokio::test]
async fn a_node_comes_back_with_its_queues() {
    let mut node = RabbitMq::start().await;
    let url = node.create_vhost().await;
    declare(&channel(&url).await.expect("a channel"), "kept", DURABLE)
        .await
        .expect("a queue");
    node.flush().await;
    node.kill();
    channel(&url).await.expect_err("no server listens");
    node.start_again().await;
    declare(&channel(&url).await.expect("a channel"), "kept", PASSIVE)
        .await
        .expect("kept");
    node.stop().await;
    channel(&url).await.expect_err("no server listens");
    node.start_again().await;
    declare(&channel(&url).await.expect("a channel"), "kept", PASSIVE)
        .await
        .expect("kept");
}

#[tokio::test]
async fn a_user_may_do_what_it_was_given() {
    let node = RabbitMq::start().await;
    let url = node.create_vhost().await;
    let vhost = url.rsplit('/').next().expect("a path");
    let user = rabbitmqctl::User {
        name: "reader",
        password: "secret",
        vhost,
        configure: "",
        write: "",
        read: ".*",
    };
    node.ctl().add_user(&user).await;
    declare(&channel(&url).await.expect("a channel"), "given", DURABLE)
        .await
        .expect("a queue");

    let reader = node.url_of("reader", "secret", vhost);
    let channel_of_reader = channel(&reader).await.expect("a channel");
    let got = channel_of_reader
        .basic_get("given".into(), BasicGetOptions::default())
        .await;
    assert!(got.expect("it may read").is_none());
    declare(&channel_of_reader, "taken", DURABLE)
        .await
        .expect_err("it may not declare");
    channel(&node.url_of("reader", "wrong", vhost))
        .await
        .expect_err("no way in");
}
