//! Blocking calls of librdkafka, on separate threads.

use jobwire_core::transport::TransportError;

/// Runs blocking work on a thread where it may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TransportError> + Send + 'static,
) -> Result<T, TransportError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(TransportError::Unreachable(error.to_string())))
}
