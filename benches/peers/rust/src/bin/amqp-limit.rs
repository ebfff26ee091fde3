//! Measures RabbitMQ with a publisher and a consumer that do nothing else. No hint through RabbitMQ
//! can be faster.
//!
//! `amqp-limit URL MESSAGES BYTES`: messages are transient, in a durable classic queue, confirmed,
//! at most 512 of them unconfirmed; consumed with a prefetch of 512, acknowledged 64 at a time.
//! Publisher and consumer have a connection each. Prints the messages per second for publishing and
//! then consuming, and for both at once.
//!
//! `amqp-limit URL MESSAGES BYTES RATE`: publishes the same messages at RATE per second, each
//! published and acknowledged by itself, to a consumer in another process. Prints two durations in
//! microseconds for each message: from its publication until it was received, and from its due time
//! until it was received.

use std::env;
use std::error::Error;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, Consumer, PublisherConfirm,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval};

const QUEUE: &str = "limit";
const UNCONFIRMED: usize = 512;
const PREFETCH: u16 = 512;
const ACKED: u64 = 64;

/// In place of a rate: the process is the receiver.
const RECEIVE: &str = "receive";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let mut next = || {
        arguments
            .next()
            .ok_or("usage: amqp-limit URL MESSAGES BYTES [RATE]")
    };
    let (url, messages, bytes) = (next()?, next()?.parse::<u64>()?, next()?.parse()?);
    let rate = next().ok();
    if rate.as_deref() == Some(RECEIVE) {
        return receive(&url, messages).await;
    }
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
    if let Some(rate) = rate {
        return arrive(&url, &publisher, messages, body, rate.parse()?).await;
    }

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

/// Publishes one transient message. Its confirm comes later.
async fn send(channel: &Channel, body: &[u8]) -> lapin::Result<PublisherConfirm> {
    let transient = BasicProperties::default().with_delivery_mode(1);
    let (key, options) = (QUEUE.into(), BasicPublishOptions::default());
    channel
        .basic_publish("".into(), key, options, body, transient)
        .await
}

async fn publish(channel: &Channel, messages: u64, body: &[u8]) -> Result<()> {
    let mut confirms = FuturesOrdered::new();
    for _ in 0..messages {
        if confirms.len() >= UNCONFIRMED {
            confirms.next().await.transpose()?;
        }
        confirms.push_back(send(channel, body).await?);
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

/// Publishes at a rate, and prints the durations that the receiver reports.
async fn arrive(
    url: &str,
    channel: &Channel,
    messages: u64,
    mut body: Vec<u8>,
    rate: u32,
) -> Result<()> {
    body.resize(body.len().max(16), b'x');
    let mut receiver = Command::new(env::current_exe()?)
        .args([url, &messages.to_string(), "0", RECEIVE])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let said = receiver.stdout.take().ok_or("the receiver has no output")?;
    let mut said = BufReader::new(said).lines();
    said.next_line()
        .await?
        .ok_or("the receiver did not start")?;
    let period = Duration::from_secs(1) / rate;
    let (mut ticks, mut due) = (interval(period), now());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut confirms = FuturesOrdered::new();
    for _ in 0..messages {
        ticks.tick().await;
        body[..8].copy_from_slice(&now().to_le_bytes());
        body[8..16].copy_from_slice(&due.to_le_bytes());
        due += period.as_micros() as u64;
        confirms.push_back(send(channel, &body).await?);
    }
    while confirms.next().await.transpose()?.is_some() {}
    while let Some(line) = said.next_line().await? {
        println!("{line}");
    }
    let ended = receiver.wait().await?;
    if ended.success() {
        Ok(())
    } else {
        Err(format!("the receiver: {ended}").into())
    }
}

/// The receiver process: receives `messages` messages, then prints how long each was on its way.
async fn receive(url: &str, messages: u64) -> Result<()> {
    let mut consumer = consumer(url).await?;
    println!("ready");
    let mut took = Vec::new();
    for _ in 0..messages {
        let delivery = consumer
            .next()
            .await
            .ok_or("the consumer was cancelled")??;
        let received = now();
        let (sent, rest) = delivery.data.split_first_chunk().ok_or("a short message")?;
        let due = rest.first_chunk().ok_or("a short message")?;
        let since = |moment: &[u8; 8]| received.saturating_sub(u64::from_le_bytes(*moment));
        took.push((since(sent), since(due)));
        delivery.ack(BasicAckOptions::default()).await?;
    }
    for (from_sent, from_due) in took {
        println!("{from_sent} {from_due}");
    }
    Ok(())
}

/// Returns the system's clock in microseconds.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros() as u64
}

fn report(what: &str, messages: u64, began: Instant) {
    println!(
        "{what} {:.0}",
        messages as f64 / began.elapsed().as_secs_f64()
    );
}
