//! What RabbitMQ gives to a publisher and a consumer that do nothing else: the limit of any hint that passes it.
//!
//! `amqp-limit URL MESSAGES BYTES`: messages are transient, in a durable classic queue, confirmed, at most 512 of them
//! unconfirmed; consumed with a prefetch of 512, acknowledged 64 at a time. Publisher and consumer have a connection
//! each. Prints what was published and then consumed in a second, and what went through when both worked at once.

use std::env;
use std::error::Error;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};

const QUEUE: &str = "limit";
const UNCONFIRMED: usize = 512;
const PREFETCH: u16 = 512;
const ACKED: u64 = 64;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let mut next = || {
        arguments
            .next()
            .ok_or("usage: amqp-limit URL MESSAGES BYTES")
    };
    let (url, messages, bytes) = (next()?, next()?.parse::<u64>()?, next()?.parse()?);
    let body = vec![b'x'; bytes];
    let publisher = channel(&url).await?;
    publisher
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    publisher
        .queue_declare(QUEUE.into(), durable, FieldTable::default())
        .await?;
    publisher
        .queue_purge(QUEUE.into(), QueuePurgeOptions::default())
        .await?;

    let began = Instant::now();
    publish(&publisher, messages, &body).await?;
    report("publish", messages, began);
    let mut consumer = consumer(&url).await?;
    let began = Instant::now();
    consume(&mut consumer, messages).await?;
    report("consume", messages, began);
    let began = Instant::now();
    let (published, consumed) = tokio::join!(
        publish(&publisher, messages, &body),
        consume(&mut consumer, messages)
    );
    published.and(consumed)?;
    report("both", messages, began);
    Ok(())
}

async fn channel(url: &str) -> Result<Channel> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    Ok(connection.create_channel().await?)
}

async fn consumer(url: &str) -> Result<Consumer> {
    let channel = channel(url).await?;
    channel
        .basic_qos(PREFETCH, BasicQosOptions::default())
        .await?;
    let (tag, options) = ("limit".into(), BasicConsumeOptions::default());
    Ok(channel
        .basic_consume(QUEUE.into(), tag, options, FieldTable::default())
        .await?)
}

async fn publish(channel: &Channel, messages: u64, body: &[u8]) -> Result<()> {
    let transient = BasicProperties::default().with_delivery_mode(1);
    let mut confirms = FuturesOrdered::new();
    for _ in 0..messages {
        if confirms.len() >= UNCONFIRMED {
            confirms.next().await.transpose()?;
        }
        let (key, options) = (QUEUE.into(), BasicPublishOptions::default());
        let confirm = channel.basic_publish("".into(), key, options, body, transient.clone());
        confirms.push_back(confirm.await?);
    }
    while confirms.next().await.transpose()?.is_some() {}
    Ok(())
}

async fn consume(consumer: &mut Consumer, messages: u64) -> Result<()> {
    for n in 1..=messages {
        let delivery = consumer
            .next()
            .await
            .ok_or("the consumer was cancelled")??;
        if n % ACKED == 0 || n == messages {
            delivery.ack(BasicAckOptions { multiple: true }).await?;
        }
    }
    Ok(())
}

fn report(what: &str, messages: u64, began: Instant) {
    println!(
        "{what} {:.0}",
        messages as f64 / began.elapsed().as_secs_f64()
    );
}
