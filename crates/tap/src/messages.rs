//! The messages of a connection: reads those of the server, and gives the stream for the answers.

use pgwire_replication::protocol::framing::MessageReader;
use pgwire_replication::protocol::{BackendMessage, ErrorFields};
use tokio::io::{AsyncWrite, BufReader};

use crate::address::Address;
use crate::error::TapError;
use crate::wire;

/// Size of the read buffer, in bytes.
const AHEAD: usize = 64 * 1024;

/// See the [module](self).
pub(crate) struct Messages {
    stream: BufReader<Box<dyn wire::Bytes>>,
    reader: MessageReader,
}

impl Messages {
    /// Opens a connection. A message of the server may be as long as `limit`, in bytes.
    pub(crate) async fn open(address: &Address, limit: usize) -> Result<Self, TapError> {
        Ok(Self {
            stream: BufReader::with_capacity(AHEAD, wire::open(address).await?),
            reader: MessageReader::new().with_max_message_size(limit),
        })
    }

    /// Returns the next message, or the error that the server sent. Nothing is lost if the future
    /// is dropped.
    pub(crate) async fn next(&mut self) -> Result<BackendMessage, TapError> {
        let message = self.any().await?;
        if message.is_error() {
            return Err(refusal(&message));
        }
        Ok(message)
    }

    /// Returns the next message; an error of the server is a message, too.
    pub(crate) async fn any(&mut self) -> Result<BackendMessage, TapError> {
        Ok(self.reader.read(&mut self.stream).await?)
    }

    /// Returns the stream to the server.
    pub(crate) fn stream(&mut self) -> &mut (impl AsyncWrite + Unpin + use<>) {
        &mut self.stream
    }
}

/// Returns the error that the server sent.
pub(crate) fn refusal(message: &BackendMessage) -> TapError {
    let fields = ErrorFields::parse(&message.payload);
    let code = fields.code.unwrap_or_default();
    let message = fields.message.unwrap_or_else(|| "no reason".to_owned());
    if code.starts_with("28") {
        return TapError::Login(format!("{message} (SQLSTATE {code})"));
    }
    TapError::Server { code, message }
}
