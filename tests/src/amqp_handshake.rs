//! Checks that a broker answers connections, without a client library.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The first octet of a method frame: the broker's `connection.start`.
const METHOD_FRAME: u8 = 1;

/// Returns when the broker has sent its first frame. RabbitMQ opens its listener as the last step
/// of its start, but an accepted connection does not show that the broker answers.
pub(crate) async fn answers(port: u16) -> Option<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(b"AMQP\x00\x00\x09\x01").await.ok()?;
    (stream.read_u8().await.ok()? == METHOD_FRAME).then_some(())
}
