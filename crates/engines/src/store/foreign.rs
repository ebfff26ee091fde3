//! Reports jobs of other scopes, such as cases, that the engine created after the node's start.
//!
//! The probe refuses an engine that has such jobs. The engine keeps later ones in the same tables.
//! The property that gives the jobs of processes to Jobwire turns their executor off, too. So the
//! leader searches for them once a minute.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use super::EngineStore;
use crate::meter::Unrun;

/// The pause between two searches.
const EVERY: Duration = Duration::from_secs(60);
/// The pause as a multiple of the duration of a search, which reads every job.
const DISTANCE: u32 = 200;

impl EngineStore {
    /// Searches for them if the pause is over.
    pub(super) async fn tell_foreign(&self) {
        let now = Instant::now();
        {
            let mut next = self
                .0
                .foreign_at
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if next.is_some_and(|next| now < next) {
                return;
            }
            *next = Some(now + EVERY);
        }
        let (dialect, rest) = (self.dialect(), &self.0.connections.rest);
        let found = self.run("foreign", rest, || dialect.foreign(&rest.inner));
        let found = match found.await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "the search for jobs of other scopes failed");
                return;
            }
        };
        let next = now + (now.elapsed() * DISTANCE).max(EVERY);
        *self
            .0
            .foreign_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(next);
        self.0
            .parts
            .meter
            .unrun(Unrun::Scope, found.iter().map(|(_, jobs)| jobs).sum());
        for (scope, jobs) in found {
            tracing::warn!(
                scope,
                jobs,
                "the engine has jobs of another scope, which Jobwire does not run; let an engine node with its own executor run them (jobwire doctor says how)"
            );
        }
    }
}
