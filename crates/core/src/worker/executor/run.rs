//! A run: a job under its lock, with its handler. Each step of the executor receives it.

use std::sync::Arc;
use std::time::Duration;

use crate::job::{Job, LockToken};
use crate::store::CANCELLED;
use crate::store::attempts::Attempt;
use crate::worker::context::NodeContext;
use crate::worker::finished::Ending;
use crate::worker::handler::Registration;
use crate::worker::lease_book::Lease;
use crate::worker::permits::Permit;
use crate::worker::slots::TypeSlot;

/// A job under its lock, with its handler.
pub(super) struct Run<'a> {
    pub(super) node: &'a Arc<NodeContext>,
    /// The job as the database has it.
    pub(super) job: &'a Arc<Job>,
    /// The job as the handler gets it: with its payload in plaintext.
    pub(super) opened: Arc<Job>,
    pub(super) held: &'a LockToken,
    pub(super) lease: &'a Arc<Lease>,
    pub(super) registration: Arc<Registration>,
    /// The slot of the type, if the type has its own limit. Held until the run ends.
    pub(super) _type_slot: Option<TypeSlot>,
    /// The permit, if the type has a limit of the fleet. Held until the run ends, or, of a rate, until
    /// the handler has started.
    pub(super) permit: Option<Permit>,
}

impl<'a> Run<'a> {
    /// Creates a run without slot and permit.
    pub(super) fn new(
        node: &'a Arc<NodeContext>,
        job: &'a Arc<Job>,
        held: &'a LockToken,
        lease: &'a Arc<Lease>,
        registration: Arc<Registration>,
    ) -> Self {
        Self {
            node,
            job,
            opened: job.clone(),
            held,
            lease,
            registration,
            _type_slot: None,
            permit: None,
        }
    }
    /// Returns the attempt to record with this outcome, if the type records attempts.
    pub(super) fn attempt(&self, outcome: &'static str, ran: Duration) -> Option<Box<Attempt>> {
        let keep = self.registration.options.keep_attempts?;
        Some(Box::new(Attempt {
            job_type: self.job.job_type.clone(),
            process_instance: self.job.process_instance.clone(),
            tenant: self.job.tenant.clone(),
            ran,
            outcome,
            reason: None,
            keep,
        }))
    }

    /// Adds the attempt to an ending that is not committed yet.
    pub(super) fn record(&self, ending: &mut Ending, ran: Duration) {
        match ending {
            Ending::Done(completion) => completion.attempt = self.attempt("done", ran),
            Ending::Cancelled(completion) => match &mut completion.attempt {
                Some(attempt) => attempt.ran = ran,
                none => *none = self.attempt(CANCELLED, ran),
            },
            Ending::Failed { failure, outcome } => failure.attempt = self.attempt(outcome, ran),
            Ending::Committed { .. }
            | Ending::Release
            | Ending::Unstarted
            | Ending::Full
            | Ending::Parked { .. }
            | Ending::Lost
            | Ending::Left => {}
        }
    }
}
