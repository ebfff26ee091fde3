//! The task that exchanges permits with the database: one request at a time, for all keys and all
//! jobs that ask. The next request gathers meanwhile.
//!
//! Permits of a rate that have cooled down go back at that instant while jobs wait for them.
//!
//! Three times in a lease, and at least once a minute, it renews what the node has borrowed, and wakes
//! jobs whose wake-up was lost, or for which the leader freed the permits of a dead node. It also ends
//! permits that no node renews although they have a date far in the future. A node without a limit sends
//! nothing.
//!
//! After a refused request each of its keys is sent in a request of its own, until it is answered.
//! So a row that another transaction has locked stops the jobs of its key only.
//!
//! After an unanswered request the task waits until that request can no longer take effect. The next
//! one names the numbers again. The jobs that had asked may be parked or not: the search for lost
//! leases finds those that are not.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;

use crate::fleet::Candidate;
use crate::hint::Ready;
use crate::job::JobId;
use crate::job::scope::Needs;
use crate::producer::commit_hook::Cause;
use crate::store::permits::{LONGEST_LOAN, PermitAnswer, PermitRequest};
use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::forward::{self, Unserved};
use crate::worker::permits::{
    Answered, Ask, Extent, LastingPermits, Permit, Permits, Round, TrustedUntil,
};

/// The bounds of the interval at which a node renews its permits and looks for jobs that wait in vain.
const FASTEST_PACE: Duration = Duration::from_millis(50);
const SLOWEST_PACE: Duration = Duration::from_secs(60);
/// The bounds of the pause after a request that was refused.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The time for which a node that ends tries to give its permits back. Those that are left are free
/// when they expire.
const FAREWELL: Duration = Duration::from_secs(6);

/// Exchanges permits until the node has ended, and gives everything back then.
pub(crate) async fn exchange_all(node: Arc<NodeContext>) {
    let ended = &node.signals.ended;
    if !node.store.has_permits() {
        return ended.cancelled().await;
    }
    let permits = node.permits.clone();
    if permits.is_in_doubt() {
        // This task died while a request was under way.
        permits.recover();
        doubt(&node).await;
    }
    let pace = (node.options.lease / 3).clamp(FASTEST_PACE, SLOWEST_PACE);
    let mut tends_at = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut lasting = LastingPermits::default();
    loop {
        let due = permits.due().map_or(tends_at, |due| due.min(tends_at));
        tokio::select! {
            biased;
            () = ended.cancelled() => break,
            () = permits.wakes.notified() => {}
            () = tokio::time::sleep_until(due) => {}
        }
        // The runtime starts the last job of a batch first. The others ask before the request is made, so
        // that they get permits in their order.
        tokio::task::yield_now().await;
        let now = Instant::now();
        let freed = permits.freed.swap(false, Ordering::Relaxed);
        let tends = now >= tends_at || freed;
        if tends {
            tends_at = now + pace;
        }
        let extent = if tends { Extent::All } else { Extent::Due };
        if tends {
            end_lasting(&node, &mut lasting).await;
        }
        let looks = tends && (freed || node.served.has_limits() || !permits.is_empty());
        if round(&node, &permits, extent, looks).await {
            pause = FIRST_PAUSE;
            if permits.has_more() {
                permits.wakes.notify_one();
            }
            continue;
        }
        tokio::select! {
            () = ended.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        permits.wakes.notify_one();
    }
    // No job runs any more, and none may start.
    permits.refuse_asks();
    let ends = Instant::now() + FAREWELL;
    while !permits.is_empty() && Instant::now() < ends {
        if !round(&node, &permits, Extent::Back, false).await {
            tokio::time::sleep(FIRST_PAUSE).await;
        } else if !permits.has_more() {
            break;
        }
    }
}

/// Waits until an unanswered request can no longer take effect.
async fn doubt(node: &NodeContext) {
    tokio::select! {
        () = node.signals.ended.cancelled() => {}
        () = tokio::time::sleep(node.store.outcome_within()) => {}
    }
    node.permits.certain();
}

/// Ends permits of this node's limits that no node renews although they have a date far in the future.
async fn end_lasting(node: &NodeContext, lasting: &mut LastingPermits) {
    // Nodes of older versions borrow for as long as their leases.
    let loan = node.options.lease.max(LONGEST_LOAN);
    let mut limits = node.served.cool_downs();
    for (_, longest) in &mut limits {
        *longest += loan;
    }
    if limits.is_empty() {
        return;
    }
    let ended = lasting.ended(&limits);
    match node.store.lasting_permits(&limits, &ended).await {
        Ok(found) => {
            let permits = lasting.found(found, &ended);
            if permits > 0 {
                tracing::warn!(
                    permits,
                    "permits of limits that no node renewed, and that would have expired later than any node \
                     borrows, were deleted"
                );
            }
        }
        Err(error) => {
            tracing::debug!(%error, "could not look for permits that no node renews; trying again");
        }
    }
}

/// Sends one request, if there is something to send. Looks for jobs that wait in vain before, if
/// asked to. Returns false if the database refused the request.
async fn round(
    node: &Arc<NodeContext>,
    permits: &Arc<Permits>,
    extent: Extent,
    looks: bool,
) -> bool {
    let mut stalled = Vec::new();
    if looks {
        match node.store.stalled_keys(&node.served.limit_names()).await {
            Ok(found) => stalled = found,
            Err(error) => {
                tracing::debug!(%error, "could not look for permits of dead nodes; trying again");
            }
        }
    }
    let Round {
        keys,
        asks,
        is_apart,
    } = permits.begin(extent, stalled);
    if keys.is_empty() {
        return true;
    }
    let lease = node.options.lease.min(LONGEST_LOAN);
    let until = TrustedUntil::after(lease);
    let mut request = PermitRequest::new(node.id, lease, keys.clone());
    if is_apart {
        // Its row is probably locked, and the other keys have their turn next.
        request = request.impatient();
    }
    match node.store.exchange_permits(&request).await {
        Ok(answer) => {
            permits.certain();
            apply(node, permits, answer, asks, until);
            true
        }
        Err(error) => {
            permits.failed(&keys);
            let hopeless = error.is_answer() && permits.refused(&keys);
            let (jobs, keys) = (asks.len(), keys.len());
            if error.is_conflict() {
                // Other nodes exchange permits of the same keys.
                tracing::debug!(jobs, keys, %error, "permits of limits are exchanged again");
            } else {
                tracing::warn!(
                    jobs, keys, %error,
                    "permits of limits could not be exchanged; trying again"
                );
            }
            if error.changed_nothing() {
                permits.certain();
                if hopeless {
                    for ask in asks {
                        let _ = ask.reply.send(Answered::Refused);
                    }
                } else {
                    permits.ask_again(asks);
                }
                return false;
            }
            for ask in asks {
                // A job that was asked to stop meanwhile has ended.
                let _ = ask.reply.send(Answered::Unknown);
            }
            doubt(node).await;
            // The next request names the numbers again, whatever the keys are due for.
            permits.wakes.notify_one();
            true
        }
    }
}

/// Acts on an answer: starts jobs, and hints those that were woken.
fn apply(
    node: &Arc<NodeContext>,
    permits: &Arc<Permits>,
    answer: PermitAnswer,
    asks: Vec<Ask>,
    until: TrustedUntil,
) {
    let mut asks: HashMap<JobId, Ask> =
        asks.into_iter().map(|ask| (ask.job.held.id, ask)).collect();
    for of in &answer.keys {
        permits.answered(of, until);
        for id in &of.granted {
            // The request named only jobs that asked.
            if let Some(ask) = asks.remove(id) {
                let permit = Permit::new(permits.clone(), of.key.clone(), ask.terms);
                // The permit goes back if the job has ended meanwhile.
                let _ = ask.reply.send(Answered::Granted(permit));
            } else {
                permits.give_back(&of.key);
            }
        }
    }
    for id in &answer.parked {
        let Some(ask) = asks.remove(id) else { continue };
        let cancelled = answer.cancelled.contains(id);
        if cancelled {
            tracing::info!(job = %id, "a job that waits for a permit was cancelled by an operator");
        } else {
            counter!(m::JOBS_PARKED, "type" => ask.job.job_type.clone()).increment(1);
        }
        let _ = ask.reply.send(Answered::Parked { cancelled });
    }
    for ask in asks.into_values() {
        let _ = ask.reply.send(Answered::Lost);
    }
    let woken: HashMap<JobId, Needs> = answer.woken.into_iter().collect();
    hint(node, answer.ready, woken);
}

/// Hints jobs. Woken ones do not queue behind their lane: their permits are reserved for a moment
/// only, and would stand idle behind a backlog. This node takes those that it serves, for every second
/// start of their lane, unless all its slots are in use and another node has free ones. It forwards the
/// others to nodes that serve them. The hints of the rest are published.
fn hint(node: &Arc<NodeContext>, ready: Vec<Ready>, mut woken: HashMap<JobId, Needs>) {
    if ready.is_empty() {
        return;
    }
    let (mut elsewhere, mut rest) = (Vec::new(), Vec::new());
    let others = match woken.is_empty() {
        true => Vec::new(),
        false => node.fleet.takers(node.options.heard_within(), node.id),
    };
    for ready in ready {
        let Some(needs) = woken.remove(&ready.hint.id) else {
            rest.push(ready);
            continue;
        };
        let serves_better = |other: &Candidate| other.free > 0 && other.serves(&needs, &ready.lane);
        let is_here = !node.signals.draining.is_cancelled()
            && node.options.receives(&ready.lane)
            && node.served.types().contains(&needs.job_type)
            && node.served.scope().takes(&needs)
            && (node.free_slots() > 0 || !others.iter().any(serves_better));
        if is_here {
            rest.extend(node.inbox.woken_here(ready));
        } else {
            elsewhere.push(Unserved { ready, needs });
        }
    }
    if !elsewhere.is_empty() {
        let hints: Vec<Ready> = elsewhere.iter().map(|of| of.ready.clone()).collect();
        let forwarded = forward::send(node, elsewhere).forwarded;
        let left = hints.into_iter();
        rest.extend(left.filter(|ready| !forwarded.contains(&ready.hint.id)));
    }
    node.hook.publish(Cause::Requeue, rest);
}
