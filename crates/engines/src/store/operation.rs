//! An operator's changes of jobs, which the engine makes.

use chrono::Utc;
use jobwire_core::store::{Operated, OperatedJobs, Store};
use jobwire_core::{JobId, JobState, StoreError};

use super::{EngineStore, Result};
use crate::changing::{self, Change, Changed};
use crate::id::engine_id;
use crate::options::Execution;

/// The number of requests in a row that do not reach the engine, after which the others are not
/// sent: each would cost a timeout.
const UNSENT: usize = 3;

impl EngineStore {
    /// Asks the engine to change a job.
    pub(super) async fn operate(&self, id: JobId, change: Change) -> Result<Operated> {
        match self.change(id, change).await? {
            Changed::Operated(operated) => Ok(operated),
            Changed::Refused(said) | Changed::Unsent(said) => Err(StoreError::Config(said)),
        }
    }

    async fn change(&self, id: JobId, change: Change) -> Result<Changed> {
        let Some((view, _, _)) = self.get(id).await? else {
            return Ok(Changed::Operated(Operated::NotFound));
        };
        // The lock has an owner of the engine, not of Jobwire.
        let is_locked = view.lock_expires_at.is_some_and(|until| until > Utc::now());
        if view.lock_owner.is_some() || is_locked {
            return Ok(Changed::Operated(Operated::Running));
        }
        let Some(text) = engine_id(id) else {
            return Ok(Changed::Operated(Operated::NotFound));
        };
        if matches!(
            (change, view.state),
            (Change::Retry(_), JobState::Suspended)
        ) {
            return self
                .0
                .parts
                .options
                .refuse("activating a job", "the activation of its process instance");
        }
        let routes = &self.0.parts.routes;
        if self.0.parts.options.execution == Execution::Endpoint {
            return Ok(changing::over_endpoint(routes, change, &text).await);
        }
        Ok(match self.0.dialect.change(change, view.state, &text) {
            Some(call) => changing::over_rest(routes, &call, &text).await,
            // It is ready already.
            None => Changed::Operated(Operated::Done),
        })
    }

    pub(super) async fn operate_many(&self, ids: &[JobId], change: Change) -> Result<OperatedJobs> {
        let mut done = OperatedJobs::default();
        let mut unsent = 0;
        for (at, id) in ids.iter().enumerate() {
            let said = match self.change(*id, change).await {
                Ok(Changed::Operated(operated)) => {
                    unsent = 0;
                    done.operated.push((*id, operated));
                    continue;
                }
                Ok(Changed::Unsent(said)) => {
                    unsent += 1;
                    said
                }
                Ok(Changed::Refused(said)) => said,
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => error.to_string(),
            };
            done.refused.push((*id, said));
            if unsent >= UNSENT {
                let rest = ids.iter().skip(at + 1);
                let away = "not sent: the engine can't be reached";
                done.refused.extend(rest.map(|id| (*id, away.to_owned())));
                break;
            }
        }
        Ok(done)
    }
}
