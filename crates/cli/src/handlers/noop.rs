//! `noop`: done at once, whatever the payload. For load tests and for looking at the machinery alone.

use jobwire_core::{HandlerResult, Outcome, Running};
use serde::de::IgnoredAny;

/// The handler type.
pub const TYPE: &str = "noop";

/// Do nothing.
///
/// # Errors
/// Never.
pub async fn run(_: Running<IgnoredAny>) -> HandlerResult {
    Ok(Outcome::Done)
}
