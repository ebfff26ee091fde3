//! `noop`: is done at once, with any payload. For load tests, and for tests of the machinery alone.

use jobwire_core::{HandlerResult, Outcome, Running};
use serde::de::IgnoredAny;

/// The handler type.
pub const TYPE: &str = "noop";

/// Does nothing.
///
/// # Errors
/// Never fails.
pub async fn run(_: Running<IgnoredAny>) -> HandlerResult<Outcome> {
    Ok(Outcome::Done)
}
