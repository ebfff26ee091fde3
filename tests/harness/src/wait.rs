//! Waiting for a condition: the only place where a test may pause.
//!
//! A fixed pause is either too short (the test fails on a slow machine) or too long (the suite is
//! slow on every machine). These functions check a condition repeatedly until a deadline; a failure
//! names the condition and the place.

use std::panic::Location;
use std::time::{Duration, Instant};

/// The first check is immediate; the next ones follow after growing pauses.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The factor by which deadlines are extended for busy machines. A deadline is generous for an idle
/// machine, a busy one may be this much slower, and a test that passes never waits for the
/// deadline.
const SLOWER: u32 = 4;

/// Returns a test's deadline, extended for a busy machine.
#[must_use]
pub fn patience(deadline: Duration) -> Duration {
    deadline.saturating_mul(SLOWER)
}

/// Waits until `check` returns a value, and returns it. Waits four times as long as `deadline`, for
/// busy machines.
///
/// `what` completes the sentence "waited 20s for …".
///
/// # Panics
/// When the deadline has passed, naming the caller's place.
///
/// ```
/// # use std::time::Duration;
/// # use jobwire_harness::eventually;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut looks = 0;
/// let seen = eventually("the third look", Duration::from_secs(5), || {
///     looks += 1;
///     let seen = (looks == 3).then_some(looks);
///     async move { seen }
/// })
/// .await;
/// assert_eq!(seen, 3);
/// # }
/// ```
#[track_caller]
pub fn eventually<T, F>(
    what: &str,
    deadline: Duration,
    check: impl FnMut() -> F,
) -> impl Future<Output = T>
where
    F: Future<Output = Option<T>>,
{
    let caller = Location::caller();
    let deadline = patience(deadline);
    let found = within(deadline, check);
    async move {
        let found = found.await;
        found.unwrap_or_else(|| panic!("waited {deadline:?} for {what} without success ({caller})"))
    }
}

/// Like [`eventually`], but returns `None` when the deadline passes, which is not extended.
pub async fn within<T, F>(deadline: Duration, mut check: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Option<T>>,
{
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    loop {
        // A check that hangs must not outlast the deadline either.
        let left = end
            .saturating_duration_since(Instant::now())
            .max(FIRST_PAUSE);
        if let Ok(Some(found)) = tokio::time::timeout(left, check()).await {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// [`within`] for places that cannot be async: `Drop`.
pub(crate) fn within_blocking<T>(
    deadline: Duration,
    mut check: impl FnMut() -> Option<T>,
) -> Option<T> {
    let end = Instant::now() + deadline;
    loop {
        let found = check();
        if found.is_some() || Instant::now() >= end {
            return found;
        }
        #[allow(
            clippy::disallowed_methods,
            reason = "the thread is about to drop a server and waits for it"
        )]
        std::thread::sleep(FIRST_PAUSE);
    }
}
