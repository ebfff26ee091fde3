//! The clients that create the jobs: concurrent tasks of this process, each on its own connection,
//! like an application.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jobwire_core::{CommitHook, NewJob};
use tokio::task::JoinSet;

use super::percentiles::Percentiles;
use super::plan::Plan;
use super::seen::Seen;
use super::{Make, now};
use crate::connect::{Creator, Database, Outlet};
use crate::error::Error;
use crate::settings::Settings;

/// Maximum time for publishing the last hints.
const PUBLISHED: Duration = Duration::from_secs(60);

/// The hints of created jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Hints {
    Sent,
    /// The hints are lost, as after the deletion of the queue.
    Lost,
    /// The jobs have no hint, like jobs of plain SQL. The commit tap of the nodes hints them.
    Tapped,
}

/// See the [module](self).
pub(super) struct Clients {
    database: Database,
    outlet: Option<Outlet>,
    creator: Creator,
    /// Maximum number of hints that wait in the hook, so that the hook drops none.
    room: usize,
}

impl Clients {
    /// Opens `count` concurrent clients.
    pub(super) async fn open(settings: &Settings, count: u16, hints: Hints) -> Result<Self, Error> {
        let mut settings = settings.clone();
        settings.database_connections.0 = settings.database_connections.0.max(u32::from(count));
        let database = Database::connect(&settings, true).await?;
        let (outlet, hook) = match hints {
            Hints::Sent => {
                let outlet = Outlet::open(&settings).await?;
                // Without a broker the node's process gets the hints, so the jobs count as hinted.
                let hook = outlet.hook().unwrap_or_else(CommitHook::disconnected);
                (Some(outlet), Some(hook))
            }
            Hints::Lost => (None, Some(CommitHook::disconnected())),
            Hints::Tapped => {
                set_up_tap(&database).await?;
                (None, None)
            }
        };
        Ok(Self {
            creator: database.creator(hook),
            database,
            outlet,
            room: settings.hint_buffer / 2,
        })
    }

    pub(super) fn creator(&self) -> Creator {
        self.creator.clone()
    }

    /// Creates the jobs of the plan with `count` concurrent clients.
    pub(super) async fn create(
        &self,
        count: u16,
        plan: &Arc<Plan>,
        make: &Make,
        commits: &Arc<Commits>,
    ) -> Result<(), Error> {
        let mut clients = JoinSet::new();
        let hook = self.outlet.as_ref().and_then(Outlet::hook);
        for _ in 0..count {
            let (creator, hook, room) = (self.creator.clone(), hook.clone(), self.room);
            let (plan, make, commits) = (plan.clone(), make.clone(), commits.clone());
            clients.spawn(async move {
                while let Some(batch) = plan.next().await {
                    let jobs: Vec<NewJob> = batch.clone().map(|n| make(n)).collect();
                    creator.create_all(jobs).await?;
                    commits.note(&batch, now());
                    while hook.as_ref().is_some_and(|hook| hook.buffered() > room) {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                Ok::<(), Error>(())
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended.map_err(|error| Error::Failed(format!("a client failed: {error}")))??;
        }
        Ok(())
    }

    /// Waits until all hints are published, and closes.
    pub(super) async fn close(self) -> Result<(), Error> {
        let left = match self.outlet {
            Some(outlet) => outlet.close(PUBLISHED).await,
            None => 0,
        };
        self.database.store().close().await;
        if left == 0 {
            return Ok(());
        }
        Err(Error::Failed(format!(
            "{left} hints were not published within {PUBLISHED:?}; check the broker"
        )))
    }
}

/// Creates the publication of the commit tap. Refuses a server on which the tap cannot stand.
async fn set_up_tap(database: &Database) -> Result<(), Error> {
    let Database::Postgres(store) = database else {
        return Err(Error::Usage(
            "--sql: SQLite has no commit tap; give --database postgres://…".to_owned(),
        ));
    };
    store.create_tap().await?;
    let missing = store.examine_tap().await?;
    match missing.iter().find(|finding| finding.blocks) {
        Some(finding) => Err(Error::Usage(format!(
            "--sql: {}; {}",
            finding.found, finding.remedy
        ))),
        None => Ok(()),
    }
}

/// The times at which the jobs' COMMITs returned, in microseconds, if they are recorded.
pub(super) struct Commits(Option<Mutex<Vec<i64>>>);

impl Commits {
    pub(super) fn kept() -> Arc<Self> {
        Arc::new(Self(Some(Mutex::default())))
    }

    pub(super) fn forgotten() -> Arc<Self> {
        Arc::new(Self(None))
    }

    /// Records the commit of these jobs.
    pub(super) fn note(&self, jobs: &Range<u32>, at: i64) {
        let Some(moments) = &self.0 else {
            return;
        };
        let mut moments = moments.lock().unwrap_or_else(PoisonError::into_inner);
        let (Ok(start), Ok(end)) = (usize::try_from(jobs.start), usize::try_from(jobs.end)) else {
            return;
        };
        if moments.len() < end {
            moments.resize(end, 0);
        }
        if let Some(moments) = moments.get_mut(start..end) {
            moments.fill(at);
        }
    }

    /// Returns the times to the start of each job from a moment that `since` computes from its
    /// number and commit.
    pub(super) fn waited(
        &self,
        seen: &Seen,
        from: u32,
        since: impl Fn(u32, i64) -> i64,
    ) -> Option<Percentiles> {
        let moments = self.0.as_ref()?;
        let moments = moments.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = (0_u32..).zip(moments.iter().zip(&seen.first));
        let jobs = jobs.filter(|(n, _)| *n >= from);
        Percentiles::of(
            jobs.map(|(n, (committed, start))| start - since(n, *committed))
                .collect(),
        )
    }

    /// Returns the times from the return of COMMIT to the start.
    pub(super) fn to_start(&self, seen: &Seen, from: u32) -> Option<Percentiles> {
        self.waited(seen, from, |_, committed| committed)
    }

    /// Returns the number of jobs that were committed after they were due.
    pub(super) fn later_than(&self, due: impl Fn(u32) -> i64) -> usize {
        let Some(moments) = &self.0 else {
            return 0;
        };
        let moments = moments.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = (0_u32..).zip(moments.iter());
        jobs.filter(|(n, committed)| **committed > due(*n)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_from_the_jobs_own_commit() {
        let commits = Commits::kept();
        commits.note(&(2..4), 5_000);
        commits.note(&(0..2), 1_000);
        let seen = Seen {
            first: vec![9_000_000, 2_000, 6_000, 8_000],
            ..Seen::default()
        };
        let waited = commits.to_start(&seen, 1).map(|p| (p.p50, p.max));
        assert_eq!(waited, Some((1.0, 3.0)));
        let since_the_number = commits.waited(&seen, 3, |n, _| i64::from(n) * 1_000);
        assert_eq!(since_the_number.map(|p| p.max), Some(5.0));
        assert_eq!(commits.later_than(|n| if n == 0 { 0 } else { 4_000 }), 3);
        assert!(Commits::forgotten().to_start(&seen, 0).is_none());
    }
}
