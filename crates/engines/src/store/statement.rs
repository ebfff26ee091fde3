//! Sends the transitions of the store: with a deadline, measured, and with a doubt after a lost
//! answer.

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use jobwire_core::store::answer::measured;
use jobwire_core::store::postgres::connection_pool::ConnectionPool;

use super::{EngineStore, Result};
use crate::doubt::Asked;

impl EngineStore {
    /// Runs one transition with a deadline, measures it, and retries it after a conflict between
    /// transactions.
    pub(super) async fn run<T, F, Fut>(
        &self,
        statement: &'static str,
        pool: &ConnectionPool,
        transition: F,
    ) -> Result<T>
    where
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        let deadline = pool.within + Duration::from_secs(1);
        let answer = measured(statement, deadline, move || {
            pool.answer(transition().boxed())
        })
        .await;
        self.0.connections.presence.note(&answer);
        answer
    }

    /// Runs a transition whose answer may contain locks.
    pub(super) async fn run_locking<T, F, Fut>(
        &self,
        statement: &'static str,
        transition: F,
    ) -> Result<T>
    where
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        let mut asked = Asked(&self.0.in_doubt, true);
        let answer = self
            .run(statement, &self.0.connections.keyed, transition)
            .await;
        asked.1 = answer.as_ref().is_err_and(|error| !error.changed_nothing());
        answer
    }
}
