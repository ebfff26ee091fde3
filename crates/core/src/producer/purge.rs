//! Purges: removing every trace of an instance or a tenant, for duties to delete.
//!
//! A purge works in slices, each a transaction of its own. An interrupted purge is continued by
//! another one. Running jobs are named, or cancelled; their traces go with another purge after their
//! end.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::job::JobId;
use crate::producer::commit_hook::CommitHook;
use crate::producer::hint_room::room;
pub use crate::producer::purge_kept::KeptSettings;
use crate::producer::purge_kept::kept;
use crate::store::purging::{PurgeScope, PurgeableJob, TableCount, table_of};
use crate::store::{Operated, Store, StoreError};
use crate::transport::Control;

/// Maximum number of jobs or records in one transaction.
const SLICE: usize = 500;
/// Maximum number of members of batches that are deleted in one transaction.
const MEMBERS: i64 = 5_000;
/// Maximum number of passes over the jobs. Creators may create jobs of the scope meanwhile.
const PASSES: usize = 10;

/// A purge of an instance or a tenant.
///
/// ```no_run
/// # async fn example(client: jobwire_core::Client<jobwire_core::PgStore>) -> Result<(), jobwire_core::StoreError> {
/// use jobwire_core::Purge;
///
/// let purge = Purge::tenant("acme").cancel_running();
/// println!("{:?}", client.purgeable(&purge).await?);
/// let purged = client.purge(&purge).await?;
/// println!("{:?}, still running: {:?}", purged.rows, purged.running);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a purge does nothing until it runs"]
pub struct Purge {
    scope: PurgeScope,
    cancels_running: bool,
}

/// The result of a purge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Purged {
    /// The number of deleted rows by table; tables without a deleted row are left out.
    pub rows: BTreeMap<&'static str, u64>,
    /// The jobs that run, and keep their rows until they end. Purge again after that.
    pub running: Vec<JobId>,
    /// The jobs that the database refused to delete, and why.
    pub refused: Vec<(JobId, String)>,
    /// The limits of which nodes hold permits for a key that is the tenant's name. Purge again when the
    /// nodes have given them back, and those of a rate have cooled down.
    pub held_limits: Vec<String>,
    /// The settings that name the scope, and stay.
    pub kept: KeptSettings,
}

impl Purged {
    fn add(&mut self, counts: impl IntoIterator<Item = TableCount>) -> u64 {
        let mut added = 0;
        for (table, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            *self.rows.entry(table).or_default() += count;
            added += count;
        }
        added
    }

    /// Returns whether no trace is left that the purge has found, apart from [settings](Self::kept).
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.has_no_job() && self.held_limits.is_empty()
    }

    fn has_no_job(&self) -> bool {
        self.running.is_empty() && self.refused.is_empty()
    }
}

impl Purge {
    /// Creates the purge of a process instance.
    pub fn instance(name: impl Into<String>) -> Self {
        Self::of(PurgeScope::ProcessInstance(name.into()))
    }

    /// Creates the purge of a tenant.
    pub fn tenant(name: impl Into<String>) -> Self {
        Self::of(PurgeScope::Tenant(name.into()))
    }

    fn of(scope: PurgeScope) -> Self {
        Self {
            scope,
            cancels_running: false,
        }
    }

    /// Cancels jobs that run. Default: they run on.
    pub fn cancel_running(mut self) -> Self {
        self.cancels_running = true;
        self
    }

    /// Counts the rows that a purge would delete now, by table. Changes nothing.
    ///
    /// # Errors
    /// A database error.
    pub async fn count(
        &self,
        store: &dyn Store,
    ) -> Result<BTreeMap<&'static str, u64>, StoreError> {
        self.checked()?;
        let mut counted = Purged::default();
        counted.add(store.purge_count(&self.scope).await?);
        Ok(counted.rows)
    }

    /// Returns the settings that name the scope. A purge leaves them, and schedules among them go on
    /// creating jobs of the scope.
    ///
    /// # Errors
    /// A database error.
    pub async fn kept(&self, store: &dyn Store) -> Result<KeptSettings, StoreError> {
        self.checked()?;
        kept(&self.scope, store).await
    }

    fn checked(&self) -> Result<(), StoreError> {
        if self.scope.value().is_empty() {
            let text = "the name of the instance or the tenant is empty; give the one to purge";
            return Err(StoreError::InvalidChange(text.to_owned()));
        }
        Ok(())
    }

    /// Deletes the rows, in slices. Publishes the hints of jobs that become ready, and the messages
    /// to nodes, through `hook`.
    ///
    /// # Errors
    /// A database error. Rows that were deleted by then stay deleted; another purge continues.
    pub async fn run(&self, store: &dyn Store, hook: &CommitHook) -> Result<Purged, StoreError> {
        self.checked()?;
        let mut purged = Purged::default();
        // Before their members: a batch without members creates the job at its end.
        self.batches(store, &mut purged).await?;
        for _ in 0..PASSES {
            (purged.running, purged.refused) = Default::default();
            if self.pass(store, hook, &mut purged).await? == 0 {
                break;
            }
        }
        let at_most = i64::try_from(SLICE).unwrap_or(i64::MAX);
        loop {
            let (counts, jobs) = store.purge_records(&self.scope, at_most).await?;
            if purged.add(counts) == 0 {
                break;
            }
            let counts = store.purge_of_jobs(&jobs).await?;
            purged.add(counts);
        }
        self.batches(store, &mut purged).await?;
        if purged.has_no_job() {
            let counts = store.purge_rest(&self.scope).await?;
            purged.add(counts);
        }
        // The deletion of a job writes an event.
        loop {
            let deleted = store.purge_events(&self.scope).await?;
            if purged.add([("event", deleted)]) == 0 {
                break;
            }
        }
        purged.held_limits = store.purge_held(&self.scope).await?;
        purged.kept = kept(&self.scope, store).await?;
        Ok(purged)
    }

    /// Deletes the batches whose jobs at the end belong to the scope.
    async fn batches(&self, store: &dyn Store, purged: &mut Purged) -> Result<(), StoreError> {
        loop {
            let counts = store.purge_batches(&self.scope, MEMBERS).await?;
            if purged.add(counts) == 0 {
                return Ok(());
            }
        }
    }

    /// Deletes the jobs once, from the first to the last. Returns their number.
    async fn pass(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        purged: &mut Purged,
    ) -> Result<u64, StoreError> {
        let at_most = i64::try_from(SLICE).unwrap_or(i64::MAX);
        let (mut after, mut deleted) = (None, 0);
        loop {
            let page = store.purge_page(&self.scope, after, at_most).await?;
            let Some(last) = page.last() else {
                return Ok(deleted);
            };
            after = Some(last.id);
            deleted += self.slice(store, hook, &page, purged).await?;
            // Without room, the sweeper publishes the hints of the rest.
            room(hook).await;
        }
    }

    async fn slice(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        page: &[PurgeableJob],
        purged: &mut Purged,
    ) -> Result<u64, StoreError> {
        let ids: Vec<JobId> = page.iter().map(|job| job.id).collect();
        let operated = store.delete_many(&ids).await?;
        hook.operated(store, operated.ready).await;
        let mut gone = Vec::new();
        for (id, what) in operated.operated {
            match what {
                Operated::Done => {
                    if let Some(job) = page.iter().find(|job| job.id == id) {
                        purged.add([
                            (table_of(job.state), 1),
                            ("job_exception", u64::from(job.has_stack)),
                            ("job_progress", u64::from(job.has_progress)),
                        ]);
                    }
                    gone.push(id);
                }
                Operated::Running => self.meet_running(store, hook, id, purged).await?,
                _ => gone.push(id),
            }
        }
        purged.refused.extend(operated.refused);
        let counts = store.purge_of_jobs(&gone).await?;
        purged.add(counts);
        Ok(gone.len() as u64)
    }

    async fn meet_running(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        id: JobId,
        purged: &mut Purged,
    ) -> Result<(), StoreError> {
        if self.cancels_running {
            let (operated, ready) = store.cancel(id).await?;
            hook.operated(store, ready).await;
            if operated != Operated::Running {
                // It has ended meanwhile. The next pass or its traces are found by the scope.
                return Ok(());
            }
            hook.tell(Control::Cancel { job: id });
        }
        purged.running.push(id);
        Ok(())
    }
}
