//! The client's suspensions and pauses, at once or at a date.

use chrono::{DateTime, Utc};

use crate::job::JobId;
use crate::producer::client::Client;
use crate::producer::gate_change::{GateChange, GateChanged};
use crate::store::{GateView, PauseScope, SqlStore, StoreError, Suspended, SuspensionScope};

impl<S: SqlStore> Client<S> {
    /// Suspends the jobs of a scope, both existing jobs and those created later. Running jobs
    /// continue.
    ///
    /// # Errors
    /// A database error.
    pub async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended, StoreError> {
        let mut suspended = self.store.suspend(scope).await?;
        let ready = std::mem::take(&mut suspended.ready);
        self.hook.operated(&self.store, ready).await;
        Ok(suspended)
    }

    /// Ends a suspension: its jobs return to the tables that they came from, and those that are
    /// ready are hinted. If the call is interrupted before the suspension has ended, another call
    /// continues; after that, the sweeper hints the rest.
    ///
    /// # Errors
    /// A database error.
    pub async fn activate(&self, scope: &SuspensionScope) -> Result<GateChanged, StoreError> {
        self.change_gate(GateChange::end(scope.clone())).await
    }

    /// Pauses a scope: its jobs, existing and later ones, stay where they are and do not start.
    /// Running jobs continue. Nothing is moved, so a pause takes no longer for many jobs. Returns
    /// false if the scope is paused already.
    ///
    /// ```no_run
    /// # async fn example(client: jobwire_core::Client<jobwire_core::PgStore>) -> Result<(), jobwire_core::StoreError> {
    /// use jobwire_core::store::PauseScope;
    ///
    /// let mail = PauseScope::Type("send-mail".to_owned());
    /// client.pause(&mail).await?;
    /// client.resume_at(&mail, chrono::Utc::now() + chrono::Duration::hours(1)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A database error.
    pub async fn pause(&self, scope: &PauseScope) -> Result<bool, StoreError> {
        self.store.pause(scope).await
    }

    /// Ends a pause, and hints the jobs that waited for it.
    ///
    /// # Errors
    /// A database error.
    pub async fn resume(&self, scope: &PauseScope) -> Result<GateChanged, StoreError> {
        self.change_gate(GateChange::end(scope.clone())).await
    }

    /// Suspends a scope at a date. Returns the id of the timer job that does it; delete that job to
    /// call it off. Any node runs it: see [`SUSPENSION_TYPE`](crate::store::SUSPENSION_TYPE).
    ///
    /// # Errors
    /// A database error.
    pub async fn suspend_at(
        &self,
        scope: &SuspensionScope,
        date: DateTime<Utc>,
    ) -> Result<JobId, StoreError> {
        let change = GateChange::begin(scope.clone());
        self.create(change.at(date)).await
    }

    /// Ends a suspension at a date. Returns the id of the timer job, as
    /// [`suspend_at`](Self::suspend_at).
    ///
    /// # Errors
    /// A database error.
    pub async fn activate_at(
        &self,
        scope: &SuspensionScope,
        date: DateTime<Utc>,
    ) -> Result<JobId, StoreError> {
        let change = GateChange::end(scope.clone());
        self.create(change.at(date)).await
    }

    /// Pauses a scope at a date. Returns the id of the timer job, as
    /// [`suspend_at`](Self::suspend_at).
    ///
    /// # Errors
    /// A database error.
    pub async fn pause_at(
        &self,
        scope: &PauseScope,
        date: DateTime<Utc>,
    ) -> Result<JobId, StoreError> {
        let change = GateChange::begin(scope.clone());
        self.create(change.at(date)).await
    }

    /// Ends a pause at a date, also a pause of everything. Returns the id of the timer job, as
    /// [`suspend_at`](Self::suspend_at).
    ///
    /// # Errors
    /// A database error.
    pub async fn resume_at(
        &self,
        scope: &PauseScope,
        date: DateTime<Utc>,
    ) -> Result<JobId, StoreError> {
        let change = GateChange::end(scope.clone());
        self.create(change.at(date)).await
    }

    /// Returns the suspensions and pauses, oldest first, with the numbers of their jobs. Reads all
    /// jobs if any exists.
    ///
    /// # Errors
    /// A database error.
    pub async fn suspensions(&self) -> Result<Vec<GateView>, StoreError> {
        self.store.suspensions().await
    }

    async fn change_gate(&self, change: GateChange) -> Result<GateChanged, StoreError> {
        change.make(&self.store, &self.hook).await
    }
}
