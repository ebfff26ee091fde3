//! The data that the parts of a node share: identity, connections, and shutdown signals.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::fleet::{Beat, Fleet};
use crate::hint::Ready;
use crate::job::scope::Scope;
use crate::job::{JobId, LockToken, NodeId};
use crate::producer::commit_hook::{Cause, CommitHook};
use crate::store::allowance::Allowance;
use crate::store::{Handoff, LockTerms, Membership, RowTerms, Store, StoreError};
use crate::telemetry::gauges::Gauges;
use crate::transport::{SPOKEN, Transport};
use crate::worker::cached_metrics::CachedMetrics;
use crate::worker::departures::Departures;
use crate::worker::finished::Finished;
use crate::worker::handler::Registration;
use crate::worker::held_instances::{End, HeldInstances};
use crate::worker::inbox::Inbox;
use crate::worker::leadership::Leadership;
use crate::worker::lease_book::LeaseBook;
use crate::worker::options::NodeOptions;
use crate::worker::permits::Permits;
use crate::worker::refused_outcomes::RefusedOutcomes;
use crate::worker::reports::Reports;
use crate::worker::row_pause::RowPause;
use crate::worker::served::Served;
use crate::worker::signals::Signals;
use crate::worker::slots::{Slots, TypeSlots};
use crate::worker::stop_counts::StopCounts;
use crate::worker::suspects::Suspects;
use crate::worker::under_way::Leases;

/// The data that the parts of a node share.
pub(crate) struct NodeContext {
    pub(crate) id: NodeId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) transport: Arc<dyn Transport>,
    /// Shared with the transactions of handlers.
    pub(crate) hook: Arc<CommitHook>,
    pub(crate) options: NodeOptions,
    /// The types and the scope that the node takes, and the handlers of the types.
    pub(crate) served: Served,
    /// The pause of row locks after some were lost.
    pub(crate) row_pause: RowPause,
    /// The number of unreadable jobs that may still become dead letters.
    pub(crate) unreadable: Mutex<Allowance>,
    pub(crate) slots: Slots,
    /// The permits of limits that the node has borrowed.
    pub(crate) permits: Arc<Permits>,
    /// The outcomes that the database refuses.
    pub(crate) refused: RefusedOutcomes,
    pub(crate) leases: Arc<LeaseBook>,
    pub(crate) instances: HeldInstances,
    /// How often the handlers of stopped jobs returned errors.
    pub(crate) stops: StopCounts,
    pub(crate) cached_metrics: CachedMetrics,
    /// The members of batches that have ended here.
    pub(crate) departures: Departures,
    pub(crate) inbox: Inbox,
    /// The jobs whose earlier holders died. They run alone, or wait to run alone.
    pub(crate) suspects: Suspects,
    /// The queue of the completer.
    pub(crate) finished: mpsc::Sender<Finished>,
    /// The tasks of running jobs.
    pub(crate) jobs: TaskTracker,
    pub(crate) signals: Signals,
    pub(crate) leadership: Leadership,
    pub(crate) fleet: Fleet,
    pub(crate) reports: Reports,
    pub(crate) gauges: Gauges,
    /// The consumer has given its hints to other nodes, because the database does not answer.
    pub(crate) database_away: AtomicBool,
}

impl NodeContext {
    /// Tells and hints jobs that this node has created.
    pub(crate) fn hint_created(&self, cause: Cause, ready: Vec<Ready>) {
        if let Some(teller) = self.teller() {
            teller.created(&ready);
        }
        self.hook.publish(cause, ready);
    }

    /// Passes an outcome to the completer. Frees the slot when the queue has accepted the outcome.
    pub(crate) async fn accept(&self, mut finished: Finished) {
        let kept = finished.kept.take();
        // Closed only when the node is gone; then the lease ends by itself.
        let _ = self.finished.send(finished).await;
        drop(kept);
    }

    /// Returns the handler of a type and the slots of the type, if it has a limit of its own. Both are
    /// read together, because a handler that replaces this one has its own slots.
    pub(crate) fn handler_and_slots(
        &self,
        job_type: &str,
    ) -> Option<(Arc<Registration>, Option<Arc<TypeSlots>>)> {
        self.served.handler_with(job_type, |registration| {
            let limit = registration.options.concurrency?;
            Some(self.slots.of_type(job_type, limit))
        })
    }

    /// Returns the slots of a type with a limit of its own; `None` if it has no limit or no handler.
    pub(crate) fn type_slots(&self, job_type: &str) -> Option<Arc<TypeSlots>> {
        self.handler_and_slots(job_type)?.1
    }

    /// Takes the hints of jobs that were released because no slot of their type was free: they wait
    /// here until one is. Returns the other hints.
    pub(crate) fn keep_full(&self, ready: Vec<Ready>, full: &HashMap<JobId, String>) -> Vec<Ready> {
        if full.is_empty() || self.signals.draining.is_cancelled() {
            return ready;
        }
        let others = ready.into_iter().filter_map(|mut ready| {
            let job_type = full.get(&ready.hint.id);
            let Some(job_type) = job_type.filter(|_| self.options.receives(&ready.lane)) else {
                return Some(ready);
            };
            // Now the hint of an exclusive job names its type, too.
            ready.hint.job_type = Some(job_type.clone());
            self.inbox.try_here(ready)
        });
        others.collect()
    }

    /// Returns the number of slots for new work.
    pub(crate) fn free_slots(&self) -> u32 {
        let takes_work = !self.signals.draining.is_cancelled()
            && self.leases.healthy()
            && !self.database_away.load(Ordering::Relaxed);
        if takes_work && !self.suspects.any() {
            u32::try_from(self.slots.of_node.free()).unwrap_or(u32::MAX)
        } else {
            0
        }
    }

    /// Returns the number of rescued jobs that this node may start now.
    pub(crate) fn rescue_room(&self) -> usize {
        let slots = self.options.struck_slots();
        slots.saturating_sub(self.leases.struck())
    }

    /// Sends a statement whose answer may contain leases of this node.
    pub(crate) async fn asks<T: Leases>(
        &self,
        statement: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let within = self.store.outcome_within();
        self.leases.asks(within, statement).await
    }

    /// Records that a handler has run under this lock, which may be lost or may still be held in
    /// the database: it was lost, or its outcome is unknown. So the node looks for leases that name it, and
    /// takes back a strike that was counted for the lock.
    pub(crate) fn may_have_lost(&self, held: LockToken) {
        // The doubt comes first: a look that begins without a doubt forgets the used locks.
        self.leases.doubt(self.store.outcome_within());
        self.leases.note_used(&held);
        self.leases.note_lost(held);
    }

    /// Records that a job is no longer held. Tries hints of its instance again that were refused
    /// meanwhile: on this node, if it has room and takes work.
    pub(crate) fn ended(&self, held: &LockToken, end: End) {
        self.leases.forget(held);
        for owed in self.instances.end(held, end) {
            self.look_again(held, owed);
        }
    }

    fn look_again(&self, held: &LockToken, owed: Ready) {
        tracing::debug!(
            job = %owed.hint.id,
            after = %held.id,
            "trying a refused hint of a process instance again"
        );
        let refused = if self.signals.draining.is_cancelled() {
            Some(owed)
        } else {
            self.inbox.try_here(owed)
        };
        if let Some(mut owed) = refused {
            // The latency since its commit was recorded before.
            owed.hint.committed_at = None;
            self.hook.publish(Cause::Handoff, vec![owed]);
        }
    }

    /// Returns the row of this node.
    pub(crate) fn membership(&self) -> Membership {
        Membership {
            id: self.id,
            revision: *self.served.revision().borrow(),
            types: self.served.types().to_vec(),
            lanes: self.options.lane_names(),
            scope: Scope::clone(&self.served.scope()),
            host: self.options.host.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            transport: self.transport.name().to_owned(),
            attempts_kept: self.served.attempts_kept(),
        }
    }

    /// Returns the beat of this node.
    pub(crate) fn beat(&self) -> Beat {
        Beat {
            revision: Some(*self.served.revision().borrow()),
            free: Some(self.free_slots()),
            rescue_room: Some(u32::try_from(self.rescue_room()).unwrap_or(u32::MAX)),
            speaks: SPOKEN,
            shares_lane: true,
        }
    }

    /// Returns the terms for locks by leases.
    pub(crate) fn terms(&self) -> LockTerms {
        LockTerms {
            owner: self.id,
            lease: self.options.lease,
            types: self.served.types(),
            scope: self.served.scope(),
            rows: RowTerms::default(),
        }
    }

    /// Returns the terms for locks of hinted jobs.
    pub(crate) fn terms_for_hints(&self) -> LockTerms {
        let mut terms = self.terms();
        // Rows of a closed type would undo the outcomes of the others in their batch.
        if self.row_pause.is_over() && self.served.all_open() {
            terms.rows = RowTerms {
                types: self.served.by_row(),
                from: self.options.row_lock_from,
            };
        }
        terms
    }

    /// Returns the handoff for these jobs that end: the next job of the instance is for this node, unless it
    /// takes no more work, or other jobs have waited for a slot for long.
    pub(crate) fn handoff<'a>(&self, mut ended: impl Iterator<Item = &'a LockToken>) -> Handoff {
        let takes_no_more = self.signals.draining.is_cancelled() || !self.leases.healthy();
        let mut shares = || ended.any(|held| held.instance.is_some()) && self.slots.share_out();
        if takes_no_more || self.suspects.any() || shares() {
            Handoff::Hint
        } else {
            Handoff::Take(self.terms())
        }
    }
}
