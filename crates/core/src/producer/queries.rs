//! The client's queries: jobs, attempts, incidents and errors.

use crate::job::query::{JobDetails, JobPage, JobQuery, JobView};
use crate::job::{JobId, JobState};
use crate::producer::client::Client;
use crate::store::attempts::{
    AttemptPage, AttemptQuery, AttemptView, ErrorGroup, Incident, IncidentFilter,
};
use crate::store::{SqlStore, StoreError};

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
        let next = query.next_page(&jobs);
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

    /// Returns the recorded attempts of a job, in their order. The job may be gone. Only types with
    /// [`keep_attempts`](crate::HandlerOptions::keep_attempts) record their attempts.
    ///
    /// # Errors
    /// A database error.
    pub async fn attempts(&self, id: JobId, limit: i64) -> Result<Vec<AttemptView>, StoreError> {
        self.store.attempts(id, limit).await
    }

    /// Returns the matching recorded attempts of all jobs, in the order of the query. A row appears
    /// when its attempt ends, and stays for the time that its type keeps it.
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`], or a database error.
    pub async fn list_attempts(
        &self,
        query: &AttemptQuery,
    ) -> Result<Vec<AttemptView>, StoreError> {
        self.store.find_attempts(query).await
    }

    /// Returns a page of the matching recorded attempts, and the place at which the next page begins.
    ///
    /// ```no_run
    /// # async fn example(client: jobwire_core::Client<jobwire_core::PgStore>) -> Result<(), jobwire_core::StoreError> {
    /// use jobwire_core::store::attempts::{AttemptOutcome, AttemptQuery};
    ///
    /// let mut query = AttemptQuery::default().tenant("acme").outcomes([AttemptOutcome::Timeout]);
    /// loop {
    ///     let page = client.attempts_page(&query).await?;
    ///     for attempt in &page.attempts {
    ///         println!("{} {} {}", attempt.started_at, attempt.job, attempt.node);
    ///     }
    ///     let Some(next) = page.next else { break };
    ///     query = query.after(next);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`], or a database error.
    pub async fn attempts_page(&self, query: &AttemptQuery) -> Result<AttemptPage, StoreError> {
        let attempts = self.store.find_attempts(query).await?;
        let next = query.next_page(&attempts);
        Ok(AttemptPage { attempts, next })
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
}
