//! The client's operations on periodic jobs.

use std::collections::HashMap;

use crate::event::{JobEvent, JobEventKind};
use crate::job::JobId;
use crate::job::periodic::{Declared, PeriodicJob};
use crate::job::sealed::Encryption;
use crate::producer::client::Client;
use crate::producer::commit_hook::Cause;
use crate::store::{PeriodicView, SqlStore, Store, StoreError};

/// Declares periodic jobs, encrypted if there is an encryption.
pub(crate) async fn declare(
    store: &dyn Store,
    encryption: Option<&Encryption>,
    jobs: &[PeriodicJob],
) -> Result<Vec<Declared>, StoreError> {
    let Some(encryption) = encryption.filter(|_| !jobs.is_empty()) else {
        return store.declare_periodic_jobs(jobs).await;
    };
    let names: Vec<String> = jobs.iter().map(|job| job.name().to_owned()).collect();
    let known = store.periodic_templates(&names).await?;
    let known: HashMap<String, String> = known.into_iter().collect();
    let sealed = jobs
        .iter()
        .map(|job| {
            job.sealed(
                encryption,
                known.get(job.name()).map(|template| &**template),
            )
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(StoreError::InvalidPeriodicJob)?;
    store.declare_periodic_jobs(&sealed).await
}

impl<S: SqlStore> Client<S> {
    /// Declares periodic jobs: creates those that are new and changes those that differ, unless the
    /// database has a larger version. Either all of them are declared or none. Returns what became
    /// of each, in their order. The leader creates the first job in its next cycle or later. With an
    /// [encryption](Self::encrypting) the schedule has the job's payload as ciphertext. One that is
    /// declared again unchanged is the same, unless the cipher has a new key.
    ///
    /// # Errors
    /// [`StoreError::InvalidPeriodicJob`] before anything is changed, or a database error.
    pub async fn declare_periodic_jobs(
        &self,
        jobs: &[PeriodicJob],
    ) -> Result<Vec<Declared>, StoreError> {
        declare(&self.store, self.encryption.as_ref(), jobs).await
    }

    /// Returns the periodic jobs, ordered by name.
    ///
    /// # Errors
    /// A database error.
    pub async fn periodic_jobs(&self) -> Result<Vec<PeriodicView>, StoreError> {
        self.store.periodic_jobs().await
    }

    /// Pauses a periodic job: it creates no jobs until it is resumed. Jobs that exist are not
    /// affected. Returns false if there is none of this name.
    ///
    /// # Errors
    /// A database error.
    pub async fn pause_periodic_job(&self, name: &str) -> Result<bool, StoreError> {
        self.store.pause_periodic_job(name, true).await
    }

    /// Resumes a periodic job with its next due date from now on. Due dates during the pause are
    /// not caught up. Returns false if there is none of this name.
    ///
    /// # Errors
    /// A database error.
    pub async fn resume_periodic_job(&self, name: &str) -> Result<bool, StoreError> {
        self.store.pause_periodic_job(name, false).await
    }

    /// Removes a periodic job. Jobs that it has created remain. A node that declares the name
    /// creates it again at its next start. Returns false if there is none of this name.
    ///
    /// # Errors
    /// A database error.
    pub async fn remove_periodic_job(&self, name: &str) -> Result<bool, StoreError> {
        self.store.remove_periodic_job(name).await
    }

    /// Creates a job of a periodic job now, even while it is paused. Its due dates do not change.
    /// Returns `None` if there is none of this name.
    ///
    /// # Errors
    /// A database error.
    pub async fn run_periodic_job(&self, name: &str) -> Result<Option<JobId>, StoreError> {
        let Some(triggered) = self.store.run_periodic_job(name, self.origin).await? else {
            return Ok(None);
        };
        let created = JobEvent::of_id(triggered.job, JobEventKind::Created);
        self.hook.listeners().tell(created);
        self.hook.publish(Cause::Operator, triggered.ready);
        Ok(Some(triggered.job))
    }
}
