//! Waiting for a moment that may be unknown.

use tokio::time::Instant;

/// Waits until this moment; for ever without one.
pub(crate) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
