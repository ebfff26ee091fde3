//! An operator's changes of jobs, which the engine makes over REST.

use jobwire_core::store::{Operated, OperatedJobs, Store};
use jobwire_core::{JobId, JobState, StoreError};

use super::{EngineStore, Result};
use crate::dialect::Change;
use crate::http::Answer;
use crate::id::engine_id;

impl EngineStore {
    /// Returns the error of a method that stays the engine's affair.
    pub(super) fn refuse<T>(&self, what: &str, instead: &str) -> Result<T> {
        Err(StoreError::Config(format!(
            "{what} of the engine `{}` is the engine's own affair; use {instead}",
            self.0.options.name
        )))
    }

    /// Asks the engine to change a job over REST, by its state.
    pub(super) async fn operate(
        &self,
        id: JobId,
        change: Change,
        retries: i32,
    ) -> Result<Operated> {
        let Some((view, _, _)) = self.get(id).await? else {
            return Ok(Operated::NotFound);
        };
        if view.lock_owner.is_some() {
            return Ok(Operated::Running);
        }
        let Some(text) = engine_id(id) else {
            return Ok(Operated::NotFound);
        };
        if matches!((change, view.state), (Change::Retry, JobState::Suspended)) {
            return self.refuse("activating a job", "the activation of its process instance");
        }
        let Some(call) = self.0.dialect.change(change, view.state, &text, retries) else {
            // It is ready already.
            return Ok(Operated::Done);
        };
        match self.0.rest.call(call).await {
            Answer::Executed => Ok(Operated::Done),
            Answer::Missing(_) => Ok(Operated::NotFound),
            Answer::Refused(said)
            | Answer::Unusable(said)
            | Answer::Unsent(said)
            | Answer::Unanswered(said) => Err(StoreError::Config(format!(
                "the engine did not change job {text}: {said}"
            ))),
        }
    }

    pub(super) async fn operate_many(
        &self,
        ids: &[JobId],
        change: Change,
        retries: i32,
    ) -> Result<OperatedJobs> {
        let mut done = OperatedJobs::default();
        for id in ids {
            match self.operate(*id, change, retries).await {
                Ok(operated) => done.operated.push((*id, operated)),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => done.refused.push((*id, error.to_string())),
            }
        }
        Ok(done)
    }
}
