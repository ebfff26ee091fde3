//! A page of claimed jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::job::{JobId, LockedJob};
use crate::store::{ClaimPage, Claimable, LockTerms, Refusal, StoreError};
use crate::telemetry::log_throttle::LogThrottle;
use crate::worker::consumer::lock_size::LockSize;
use crate::worker::context::NodeContext;
use crate::worker::executor;
use crate::worker::slot_pool::Slot;

/// The maximum time for which a refused page is tried in parts; at most a sixth of the lease. Slots
/// wait meanwhile.
const IN_PARTS: Duration = Duration::from_secs(5);
/// The number of jobs refused alone, with none locked, from which no row counts as the reason.
const HOPELESS: usize = 16;

/// Claims a page and starts its jobs. A page that the database refuses is locked in halves, without
/// the rows that are refused alone. Returns the number of claimed jobs, and the job after which to
/// continue.
pub(super) async fn claim_page(
    node: &Arc<NodeContext>,
    terms: &LockTerms,
    page: &ClaimPage,
    slots: &mut Vec<Slot>,
    size: &mut LockSize,
    told: &mut LogThrottle,
) -> Result<(usize, Option<JobId>), StoreError> {
    let mut count = 0;
    let mut start = |jobs: Vec<LockedJob>, sent| {
        let slots = std::iter::from_fn(|| slots.pop());
        size.saw_jobs(&jobs);
        let started = jobs.len();
        executor::start_unhinted(node, jobs, "claim", sent, slots);
        started
    };
    let sent = Instant::now();
    let (undecided, mut after) = match node.asks(node.store.claim(terms, page)).await {
        Err(error) if error.is_answer() => {
            tracing::debug!(
                lane = %page.lane,
                %error,
                "the database refused a page; trying it in parts"
            );
            let Claimable { hints, after } = node.store.claimable(terms, page).await?;
            (hints, after)
        }
        claimed => {
            let claimed = claimed?;
            count += start(claimed.jobs, sent);
            (claimed.undecided, claimed.after)
        }
    };
    let until = sent + IN_PARTS.min(node.options.lease / 6);
    let (mut refused, mut first) = (0, None);
    let mut parts = vec![undecided];
    while let Some(hints) = parts.pop()
        && let Some(last) = hints.last().map(|hint| hint.id)
    {
        let sent = Instant::now();
        let mut again = match node.asks(node.store.lock(terms, &hints)).await {
            Ok(locked) => {
                let is_busy = |id| locked.refused.contains(&(id, Refusal::Busy));
                let mut busy = hints;
                busy.retain(|hint| locked.is_cut && is_busy(hint.id));
                count += start(locked.jobs, sent);
                // A single busy row is skipped.
                if busy.len() > 1 { busy } else { Vec::new() }
            }
            Err(error) if error.is_answer() && hints.len() > 1 => hints,
            Err(error) if error.is_answer() => {
                refused += 1;
                first.get_or_insert((last, error));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let rest = again.split_off(again.len() / 2);
        parts.extend([rest, again].into_iter().filter(|part| !part.is_empty()));
        let is_cut = Instant::now() >= until && !parts.is_empty();
        if is_cut {
            after = Some(last);
        }
        if is_cut || (refused >= HOPELESS && count == 0) {
            break;
        }
    }
    match first {
        Some((_, error)) if refused >= HOPELESS && count == 0 => Err(error),
        Some((job, error)) => {
            if let Some(more) = told.now() {
                tracing::warn!(
                    %job, jobs = refused, %error, more,
                    "the database refuses to lock jobs; they are skipped until the next pass. Fix \
                     the cause named in the error, or delete the jobs"
                );
            }
            Ok((count, after))
        }
        None => Ok((count, after)),
    }
}
