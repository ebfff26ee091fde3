//! What the parts of a node share: who it is, what it works on, and the signals of its shutdown.

use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::fleet::{Beat, Fleet};
use crate::hint::Ready;
use crate::job::scope::Scope;
use crate::job::{LockToken, NodeId};
use crate::producer::commit_hook::{Cause, CommitHook};
use crate::store::allowance::Allowance;
use crate::store::{Handoff, LockTerms, Membership, RowTerms, Store, StoreError};
use crate::transport::{SPOKEN, Transport};
use crate::worker::cached_metrics::CachedMetrics;
use crate::worker::finished::Finished;
use crate::worker::held_hints::Questions;
use crate::worker::held_instances::{End, HeldInstances};
use crate::worker::lease_book::LeaseBook;
use crate::worker::next_timer::NextTimer;
use crate::worker::options::NodeOptions;
use crate::worker::own_hints::{OWN_HINTS, OwnHint};
use crate::worker::refused_outcomes::RefusedOutcomes;
use crate::worker::reports::Reports;
use crate::worker::row_pause::RowPause;
use crate::worker::served::Served;
use crate::worker::signals::Signals;
use crate::worker::slots::Slots;
use crate::worker::suspects::Suspects;
use crate::worker::under_way::Leases;

/// What the parts of a node share.
pub(crate) struct NodeContext {
    pub(crate) id: NodeId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) hook: CommitHook,
    pub(crate) options: NodeOptions,
    /// What is locked now, and by which handlers it is run.
    pub(crate) served: Served,
    /// No row locks until then, since some were lost.
    pub(crate) row_pause: RowPause,
    /// Jobs whose rows can't be read, and how many of them may become dead letters.
    pub(crate) unreadable: Mutex<Allowance>,
    pub(crate) slots: Slots,
    /// Outcomes that the database refuses.
    pub(crate) refused: RefusedOutcomes,
    pub(crate) leases: Arc<LeaseBook>,
    pub(crate) instances: HeldInstances,
    pub(crate) cached_metrics: CachedMetrics,
    /// Hints that did not come from the broker.
    pub(crate) own_hints: mpsc::Sender<OwnHint>,
    /// Which hints does the consumer hold?
    pub(crate) questions: Arc<Questions>,
    /// Jobs whose earlier holders died, waiting to run alone or running so.
    pub(crate) suspects: Suspects,
    pub(crate) finished: mpsc::Sender<Finished>,
    pub(crate) jobs: TaskTracker,
    pub(crate) signals: Signals,
    pub(crate) leads: watch::Sender<bool>,
    pub(crate) next_timer: NextTimer,
    pub(crate) fleet: Fleet,
    pub(crate) reports: Reports,
}

impl NodeContext {
    /// Pass an outcome on to be committed; its slot is free when it has been accepted.
    pub(crate) async fn accept(&self, mut finished: Finished) {
        let kept = finished.kept.take();
        // Closed only when the node is gone; then the lease ends by itself.
        let _ = self.finished.send(finished).await;
        drop(kept);
    }

    /// Try a hint here before any other node; it comes back where there is no room.
    pub(crate) fn try_here(&self, ready: Ready) -> Option<Ready> {
        self.hint_here(OwnHint::InTurn(ready))
    }

    /// The same before all that waits here in its lane.
    pub(crate) fn rescue_here(&self, ready: Ready) -> Option<Ready> {
        self.hint_here(OwnHint::Rescued(ready))
    }

    /// A job that another node can't serve.
    pub(crate) fn forwarded_here(&self, ready: Ready) -> Option<Ready> {
        // Half of the room is for rescued jobs.
        if self.own_hints.capacity() < OWN_HINTS / 2 {
            return Some(ready);
        }
        self.hint_here(OwnHint::Forwarded(ready))
    }

    fn hint_here(&self, hint: OwnHint) -> Option<Ready> {
        let sent = self.own_hints.try_send(hint);
        sent.err().map(|error| error.into_inner().into_ready())
    }

    /// Slots for new work.
    pub(crate) fn free_slots(&self) -> u32 {
        let takes_work = !self.signals.draining.is_cancelled() && self.leases.healthy();
        if takes_work && !self.suspects.any() {
            u32::try_from(self.slots.free()).unwrap_or(u32::MAX)
        } else {
            0
        }
    }

    /// Send a statement whose answer may tell of leases of this node.
    pub(crate) async fn asks<T: Leases>(
        &self,
        statement: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let within = self.store.outcome_within();
        self.leases.asks(within, statement).await
    }

    /// A handler has run under this lock, which may be lost or may still be held in the database: the leases that name
    /// this node are looked at, and a strike that was counted against the lock is taken back.
    pub(crate) fn may_have_lost(&self, held: LockToken) {
        self.is_in_doubt(&held);
        self.leases.note_lost(held);
    }

    /// A handler has run under this lock, and its outcome is unknown.
    pub(crate) fn is_in_doubt(&self, held: &LockToken) {
        // The doubt comes first: a look that begins without a doubt forgets the used locks.
        self.leases.doubt(self.store.outcome_within());
        self.leases.note_used(held);
    }

    /// A job is held no more. Where a hint is owed since then, its instance is looked at again: here first, as far as
    /// there is room and this node takes work.
    pub(crate) fn let_go(&self, held: &LockToken, end: End) {
        self.leases.forget(held);
        for owed in self.instances.end(held, end) {
            self.look_again(held, owed);
        }
    }

    fn look_again(&self, held: &LockToken, owed: Ready) {
        tracing::debug!(job = %owed.hint.id, after = %held.id, "a hint that was refused here is looked at again");
        let refused = if self.signals.draining.is_cancelled() {
            Some(owed)
        } else {
            self.try_here(owed)
        };
        if let Some(mut owed) = refused {
            // It has told of its commit once.
            owed.hint.committed_at = None;
            self.hook.publish(Cause::Handoff, vec![owed]);
        }
    }

    /// What this node says of itself.
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
        }
    }

    /// What it says in a beat.
    pub(crate) fn beat(&self) -> Beat {
        Beat {
            revision: Some(*self.served.revision().borrow()),
            free: Some(self.free_slots()),
            speaks: SPOKEN,
        }
    }

    /// Under which terms to lock by leases.
    pub(crate) fn terms(&self) -> LockTerms {
        LockTerms {
            owner: self.id,
            lease: self.options.lease,
            types: self.served.types(),
            scope: self.served.scope(),
            rows: RowTerms::default(),
        }
    }

    /// Under which terms to lock what was hinted.
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

    /// What passes an instance on: the next one for this node, unless it takes no more work.
    pub(crate) fn handoff(&self) -> Handoff {
        if self.signals.draining.is_cancelled() || !self.leases.healthy() || self.suspects.any() {
            Handoff::Hint
        } else {
            Handoff::Take(self.terms())
        }
    }
}
