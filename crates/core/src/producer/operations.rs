//! The client's operations on existing jobs.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use crate::event::{JobEvent, JobEventKind};
use crate::job::query::{JobCursor, JobDetails, JobPage, JobQuery, JobView};
use crate::job::{JobId, JobState};
use crate::lane::priority::{JobDefinition, PriorityRule, PriorityScope};
use crate::lane::rule::LaneRule;
use crate::producer::client::Client;
use crate::producer::commit_hook::Cause;
use crate::producer::gate_change::{GateChange, GateChanged};
use crate::producer::lane_move::{LaneMove, LaneMoved};
use crate::producer::priority_cascade::{PriorityCascade, PriorityCascaded};
use crate::producer::purge::{Purge, Purged};
use crate::store::attempts::{AttemptView, ErrorGroup, Incident, IncidentFilter};
use crate::store::{
    Change, Ended, EndedScope, GateView, Operated, OperatedJobs, PauseScope, SqlStore, StoreError,
    Suspended, SuspensionScope,
};
use crate::transport::Control;

impl<S: SqlStore> Client<S> {
    /// Returns a job in any state; `None` if it is done, was deleted, or never existed.
    ///
    /// # Errors
    /// A database error.
    pub async fn get(&self, id: JobId) -> Result<Option<JobDetails>, StoreError> {
        let found = self.store.get(id).await?;
        Ok(found.map(|(view, job, stack)| JobDetails { view, job, stack }))
    }

    /// Returns the matching jobs of every state, in the order of the query.
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`], or a database error.
    pub async fn list(&self, query: &JobQuery) -> Result<Vec<JobView>, StoreError> {
        self.store.find(query).await
    }

    /// Returns a page of the matching jobs, and the place at which the next page begins.
    ///
    /// ```no_run
    /// # async fn example(client: jobwire_core::Client<jobwire_core::PgStore>) -> Result<(), jobwire_core::StoreError> {
    /// use jobwire_core::{JobQuery, JobSort, SortBy};
    ///
    /// let mut query = JobQuery::default().sort(JobSort::descending(SortBy::Priority)).limit(500);
    /// loop {
    ///     let page = client.page(&query).await?;
    ///     for job in &page.jobs {
    ///         println!("{} {}", job.id, job.priority);
    ///     }
    ///     let Some(next) = page.next else { break };
    ///     query = query.after(next);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`], or a database error.
    pub async fn page(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        let jobs = self.store.find(query).await?;
        let limit = query.limit.min(JobQuery::MAX_LIMIT);
        let is_full = i64::try_from(jobs.len()).is_ok_and(|found| found >= limit);
        let last = jobs.last().filter(|_| is_full);
        let next = last.map(|last| JobCursor::after(last, query.sort));
        Ok(JobPage { jobs, next })
    }

    /// Counts the matching jobs. Order and page of the query do not count.
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`], or a database error.
    pub async fn count(&self, query: &JobQuery) -> Result<i64, StoreError> {
        self.store.count(query).await
    }

    /// Counts the matching jobs, up to `at_most`. Use it where the exact number of very many jobs
    /// is of no interest: the database stops to count there.
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`], or a database error.
    pub async fn count_at_most(&self, query: &JobQuery, at_most: i64) -> Result<i64, StoreError> {
        self.store.count_at_most(query, at_most).await
    }

    /// Makes a job executable now, with this number of attempts. The job may be a dead letter, a
    /// waiting retry, a timer or a suspended job, but must not be running. The hint of an
    /// executable job is published again.
    ///
    /// # Errors
    /// A database error.
    pub async fn retry(&self, id: JobId, attempts: i32) -> Result<Operated, StoreError> {
        let open = self.open_incidents(&[id]).await;
        let (operated, ready) = self.store.retry(id, attempts).await?;
        let at_once = JobEventKind::Rescheduled { due_at: None };
        self.tell(&[(id, operated)], &open, &at_once);
        self.hook.publish(Cause::Operator, ready);
        Ok(operated)
    }

    /// [Retries](Self::retry) many jobs in one transaction. A job that the database refuses to
    /// change stays as it was and is in [`refused`](OperatedJobs::refused).
    ///
    /// # Errors
    /// A database error.
    pub async fn retry_many(
        &self,
        ids: &[JobId],
        attempts: i32,
    ) -> Result<OperatedJobs, StoreError> {
        let open = self.open_incidents(ids).await;
        let operated = self.store.retry_many(ids, attempts).await?;
        let at_once = JobEventKind::Rescheduled { due_at: None };
        self.tell(&operated.operated, &open, &at_once);
        Ok(self.published(operated))
    }

    /// Deletes a job in any state, unless it is running.
    ///
    /// # Errors
    /// A database error.
    pub async fn delete(&self, id: JobId) -> Result<Operated, StoreError> {
        let open = self.open_incidents(&[id]).await;
        let (operated, ready) = self.store.delete(id).await?;
        let cancelled = JobEventKind::Cancelled;
        self.tell(&[(id, operated)], &open, &cancelled);
        self.hook.publish(Cause::Operator, ready);
        Ok(operated)
    }

    /// [Deletes](Self::delete) many jobs in one transaction. A job that the database refuses to
    /// delete stays as it was and is in [`refused`](OperatedJobs::refused).
    ///
    /// # Errors
    /// A database error.
    pub async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs, StoreError> {
        let open = self.open_incidents(ids).await;
        let operated = self.store.delete_many(ids).await?;
        let cancelled = JobEventKind::Cancelled;
        self.tell(&operated.operated, &open, &cancelled);
        Ok(self.published(operated))
    }

    /// Deletes a job, also one that runs.
    ///
    /// The cancel of a running job is committed when this returns [`Operated::Running`]: it is a
    /// mark in the lease of the job, and a message tells the node at once. If the message is lost,
    /// the node learns of the cancel with its next renewal, after a third of the lease at most. Then
    /// [`Running::stop`](crate::Running::stop) is cancelled. A handler that has not ended two seconds
    /// later is dropped. The job is deleted, whatever it answers, and no occurrence follows it. If
    /// the handler answers `Ok`, the job counts as done, otherwise as `cancelled`. The mark also
    /// holds if the node dies, or gives the job back: the job does not start again.
    ///
    /// # Errors
    /// A database error.
    pub async fn cancel(&self, id: JobId) -> Result<Operated, StoreError> {
        let open = self.open_incidents(&[id]).await;
        let (operated, ready) = self.store.cancel(id).await?;
        let cancelled = JobEventKind::Cancelled;
        self.tell(&[(id, operated)], &open, &cancelled);
        self.hook.publish(Cause::Operator, ready);
        if operated == Operated::Running {
            self.hook.tell(Control::Cancel { job: id });
        }
        Ok(operated)
    }

    /// Returns the last checkpoint that a handler of this job has
    /// [saved](crate::Running::save_checkpoint), as JSON; `None` if there is none, or no such job.
    ///
    /// # Errors
    /// A database error, or a checkpoint that is no JSON.
    pub async fn checkpoint(&self, id: JobId) -> Result<Option<serde_json::Value>, StoreError> {
        let text = self.store.checkpoint(id).await?;
        let parsed = text.map(|text| serde_json::from_str(&text));
        parsed
            .transpose()
            .map_err(|error| StoreError::BadRow(format!("the checkpoint of job {id}: {error}")))
    }

    /// Changes jobs: see [`Change`] for the changes, and the states that each one applies to.
    ///
    /// The jobs whose rows are free are changed in one transaction. A row that another transaction
    /// locks is tried for two seconds more, in transactions of its own. A job that is in
    /// [`refused`](OperatedJobs::refused) was not changed, unless its reason is a lost connection:
    /// then look at the job.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] before anything is changed, or a database error.
    pub async fn change(&self, ids: &[JobId], change: &Change) -> Result<OperatedJobs, StoreError> {
        let changed = self.store.change_many(ids, change).await?;
        self.tell_change(&changed.operated, change);
        self.hook.timer_set(changed.timer);
        Ok(self.published(changed))
    }

    /// Takes the lock of a job from its node: the job is ready again, and no attempt is spent.
    ///
    /// Meant for a handler that never ends on a node that lives. The node learns of it with its
    /// next renewal and stops the handler. Until then the handler may still work while another node
    /// runs the job, or the next exclusive job of its instance. It can't complete the job: its
    /// fence is no longer valid. Use [`cancel`](Self::cancel) first.
    ///
    /// # Errors
    /// A database error.
    pub async fn unlock(&self, id: JobId) -> Result<Operated, StoreError> {
        let (unlocked, ready) = self.store.unlock(id).await?;
        if unlocked == Operated::Done {
            let rejected = JobEvent::of_id(id, JobEventKind::Rejected);
            self.hook.listeners().tell(rejected);
        }
        self.hook.publish(Cause::Operator, ready);
        Ok(unlocked)
    }

    /// Deletes all jobs of a scope in one transaction of its own; see
    /// [`JobTransaction::end`](crate::JobTransaction::end).
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::end`](crate::JobTransaction::end) and
    /// [`commit`](crate::JobTransaction::commit).
    pub async fn end(&self, scope: &EndedScope) -> Result<Ended, StoreError> {
        let mut tx = self.begin().await?;
        let ended = tx.end(scope).await?;
        tx.commit().await?;
        Ok(ended)
    }

    /// Returns the recorded attempts of a job, in their order. The job may be gone. Only types with
    /// [`keep_attempts`](crate::HandlerOptions::keep_attempts) record their attempts.
    ///
    /// # Errors
    /// A database error.
    pub async fn attempts(&self, id: JobId, limit: i64) -> Result<Vec<AttemptView>, StoreError> {
        self.store.attempts(id, limit).await
    }

    /// Returns incidents, the latest first: dead letters of the present, and with
    /// [`resolved`](IncidentFilter::resolved) those of the past, too.
    ///
    /// # Errors
    /// A database error.
    pub async fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<Incident>, StoreError> {
        self.store.incidents(filter).await
    }

    /// Groups failures by type and message, the most frequent first. Reads all jobs.
    ///
    /// # Errors
    /// A database error.
    pub async fn errors(
        &self,
        job_type: Option<&str>,
        limit: i64,
    ) -> Result<Vec<ErrorGroup>, StoreError> {
        self.store.errors(job_type, limit).await
    }

    /// Counts the rows that a [purge](Self::purge) would delete now, by table. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] for an empty name, or a database error.
    pub async fn purgeable(
        &self,
        purge: &Purge,
    ) -> Result<BTreeMap<&'static str, u64>, StoreError> {
        purge.count(&self.store).await
    }

    /// Removes every trace of a process instance or a tenant, in slices: jobs of all states, with
    /// stacks, progress, checkpoints, attempts, incidents, unique keys, events and suspensions.
    /// Running jobs are named, or [cancelled](Purge::cancel_running); purge again after their end.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] for an empty name, or a database error: another call continues.
    pub async fn purge(&self, purge: &Purge) -> Result<Purged, StoreError> {
        purge.run(&self.store, &self.hook).await
    }

    /// Suspends the jobs of a scope, both existing jobs and those created later. Running jobs
    /// continue.
    ///
    /// # Errors
    /// A database error.
    pub async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended, StoreError> {
        let mut suspended = self.store.suspend(scope).await?;
        let ready = std::mem::take(&mut suspended.ready);
        self.hook.publish(Cause::Operator, ready);
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

    /// Returns the dead letters of a type, oldest first, at most `limit`.
    ///
    /// # Errors
    /// A database error.
    pub async fn dead_letters(
        &self,
        job_type: impl Into<String>,
        limit: i64,
    ) -> Result<Vec<JobView>, StoreError> {
        let filter = JobQuery::default()
            .states([JobState::DeadLetter])
            .job_type(job_type)
            .limit(limit);
        self.list(&filter).await
    }

    /// Returns the rules that choose the lanes of jobs whose creator names none.
    ///
    /// # Errors
    /// A database error.
    pub async fn lane_rules(&self) -> Result<Vec<LaneRule>, StoreError> {
        self.store.lane_rules().await
    }

    /// Replaces all lane rules at once. Jobs that exist keep their lanes.
    ///
    /// # Errors
    /// [`StoreError::InvalidRules`] before any rule is changed.
    pub async fn set_lane_rules(&self, rules: &[LaneRule]) -> Result<(), StoreError> {
        self.store.set_lane_rules(rules).await
    }

    /// Moves the jobs of a lane to another one.
    ///
    /// # Errors
    /// A database error.
    pub async fn move_lane(&self, plan: &LaneMove) -> Result<LaneMoved, StoreError> {
        plan.run(&self.store, &self.hook, |_| {}).await
    }

    /// Returns the [priority rules](crate::lane::priority).
    ///
    /// # Errors
    /// A database error.
    pub async fn priority_rules(&self) -> Result<Vec<PriorityRule>, StoreError> {
        self.store.priority_rules().await
    }

    /// Sets the priority of a scope, for jobs that are created from now on. Replaces the scope's
    /// former priority.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] before anything is changed, or a database error.
    pub async fn set_priority(&self, rule: &PriorityRule) -> Result<(), StoreError> {
        self.store.set_priority_rule(rule).await
    }

    /// Overrides the priority of a job definition, and gives it to the existing jobs, too, except
    /// running ones. Ready jobs whose lane the rules chose move to their new lane. To change one
    /// job, use [`change`](Self::change) with [`Change::SetPriority`].
    ///
    /// ```no_run
    /// # async fn example(client: jobwire_core::Client<jobwire_core::PgStore>) -> Result<(), jobwire_core::StoreError> {
    /// use jobwire_core::{JobDefinition, PriorityScope};
    ///
    /// let notify = JobDefinition::of("send-mail").element("notify");
    /// let cascaded = client.override_priority(&notify, 100).await?;
    /// println!("{} jobs changed, {} running", cascaded.changed, cascaded.running);
    /// client.clear_priority(&PriorityScope::Override(notify)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The same as those of [`set_priority`](Self::set_priority). After an error of the database the
    /// override may be set, and some jobs changed; another call continues.
    pub async fn override_priority(
        &self,
        definition: &JobDefinition,
        priority: i64,
    ) -> Result<PriorityCascaded, StoreError> {
        let scope = PriorityScope::Override(definition.clone());
        self.set_priority(&PriorityRule::new(scope, priority))
            .await?;
        let cascade = PriorityCascade {
            definition: definition.clone(),
            priority,
        };
        cascade.run(&self.store, &self.hook).await
    }

    /// Removes the priority of a scope. Existing jobs keep theirs. Returns false if there is none.
    ///
    /// # Errors
    /// A database error.
    pub async fn clear_priority(&self, scope: &PriorityScope) -> Result<bool, StoreError> {
        self.store.clear_priority_rule(scope).await
    }

    /// Returns whether an exclusive job waits for an earlier job of its instance that failed.
    ///
    /// # Errors
    /// A database error.
    pub async fn strict_order(&self) -> Result<bool, StoreError> {
        self.store.strict_order().await
    }

    /// Sets for every node whether an exclusive job waits for an earlier job of its instance that
    /// waits for a retry, is suspended, or is a dead letter.
    ///
    /// # Errors
    /// A database error.
    pub async fn set_strict_order(&self, strict: bool) -> Result<(), StoreError> {
        self.store.set_strict_order(strict).await
    }

    fn published(&self, mut operated: OperatedJobs) -> OperatedJobs {
        let ready = std::mem::take(&mut operated.ready);
        self.hook.publish(Cause::Operator, ready);
        operated
    }
}
