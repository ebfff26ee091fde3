//! The client's rules of lanes, priorities and the order of instances.

use crate::job::BatchId;
use crate::lane::priority::{JobDefinition, PriorityRule, PriorityScope};
use crate::lane::rule::LaneRule;
use crate::producer::client::Client;
use crate::producer::priority_cascade::{CascadeScope, PriorityCascade, PriorityCascaded};
use crate::store::{SqlStore, StoreError};

impl<S: SqlStore> Client<S> {
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
    /// job, use [`change`](Self::change) with
    /// [`Change::SetPriority`](crate::store::Change::SetPriority).
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
            scope: CascadeScope::Definition(definition.clone()),
            priority,
        };
        cascade.run(&self.store, &self.hook).await
    }

    /// Gives the members of a batch and of the batches inside it a priority, except running ones,
    /// whatever the rules say. Ready jobs whose lane the rules chose move to their new lane. Returns
    /// `None` if the batch does not exist.
    ///
    /// A batch has no rule: a member that is added later keeps the priority that it was created with.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     client: jobwire_core::Client<jobwire_core::PgStore>,
    /// #     import: jobwire_core::BatchId,
    /// # ) -> Result<(), jobwire_core::StoreError> {
    /// if let Some(changed) = client.set_batch_priority(import, -10).await? {
    ///     println!("{} jobs changed, {} running", changed.changed, changed.running);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A database error. The jobs that were changed by then stay changed; another call continues.
    pub async fn set_batch_priority(
        &self,
        batch: BatchId,
        priority: i64,
    ) -> Result<Option<PriorityCascaded>, StoreError> {
        if self.store.batch(batch).await?.is_none() {
            return Ok(None);
        }
        let scope = CascadeScope::Batch(batch);
        let cascade = PriorityCascade { scope, priority };
        cascade.run(&self.store, &self.hook).await.map(Some)
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
}
