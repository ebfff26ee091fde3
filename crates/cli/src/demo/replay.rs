//! Replays an event log: each event is an exclusive `event` job of its case, created in its own
//! transaction.
//!
//! Several creators work concurrently, but one creator creates all events of a case, in the order
//! of the log. Only the rows that the jobs wrote show whether the events of each case ran one at a
//! time and in order ([`verdict`]).

mod verdict;

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use jobwire_core::{JobId, StoreError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connect::{Creator, Database};
use crate::error::Error;

use super::Speed;
use super::account::Account;
use super::args::DemoArgs;
use super::event_log::Event;
use super::ledger::{self, Clock};
use super::progress::Progress;
use super::stage::Stage;

/// The interval at which the number of remaining jobs is read from the database.
const LOOK: Duration = Duration::from_millis(200);
/// The time without progress after which the run fails. It is long enough for a job whose node
/// died, or whose hint was lost twice.
const STANDSTILL: Duration = Duration::from_secs(120);

/// A committed job.
struct Created {
    event: usize,
    id: JobId,
    /// The time of its commit, by the database's clock.
    committed_at: DateTime<Utc>,
}

/// Replays the log.
pub(super) async fn run(
    stage: &mut Stage,
    events: Vec<Event>,
    args: &DemoArgs,
) -> Result<Account, Error> {
    let here = args.nodes == 0 || (args.nodes == 1 && !stage.has_broker());
    let hook = if here {
        Some(stage.start_here(|_| {}).await?)
    } else {
        stage.start_processes(args.nodes).await?
    };
    let nodes = stage.nodes();
    let began_at = stage.clock.now() - chrono::Duration::seconds(1);
    let began = Instant::now();
    let work = Arc::new(Work {
        events,
        creator: stage.database.creator(hook),
        clock: stage.clock,
        run: stage.run,
        speed: args.speed,
        began,
        created: AtomicU64::new(0),
        stop: stage.stop.clone(),
    });
    let created = create_and_wait(stage, &work).await?;
    let seconds = began.elapsed().as_secs_f64();

    let jobs: HashMap<JobId, &Created> = created.iter().map(|c| (c.id, c)).collect();
    let ids = jobs.keys().copied().collect();
    let rows = ledger::entries(&stage.database, began_at, &ids).await?;
    let left = stage.unfinished().await?;
    let dead = stage.dead_letters().await?;
    let facts = verdict::Facts {
        events: &work.events,
        created: &created,
        rows,
        left: u64::try_from(left).unwrap_or_default(),
        dead: u64::try_from(dead).unwrap_or_default(),
    };
    Ok(facts.account(stage, nodes, seconds))
}

/// The state that the creators share.
struct Work {
    events: Vec<Event>,
    creator: Creator,
    clock: Clock,
    run: Uuid,
    speed: Speed,
    began: Instant,
    created: AtomicU64,
    stop: CancellationToken,
}

async fn create_and_wait(stage: &mut Stage, work: &Arc<Work>) -> Result<Vec<Created>, Error> {
    let mut progress = Progress::start("replay");
    let mut creators = JoinSet::new();
    for events in shares(&work.events, creators_of(&stage.database)) {
        let work = work.clone();
        creators.spawn(async move { create(&work, events).await });
    }
    let mut created = Vec::with_capacity(work.events.len());
    let mut last = (0, 0);
    let mut moved = Instant::now();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(ended) = creators.join_next() => {
                created.extend(ended.map_err(|e| Error::Failed(format!("a creator of jobs failed: {e}")))??);
                continue;
            }
            _ = look.tick() => {}
        }
        for lost in stage.lost_nodes()? {
            progress.say(&lost);
        }
        // Read before the query, so that jobs created meanwhile do not count as finished.
        let so_far = work.created.load(Ordering::Relaxed);
        let left = u64::try_from(stage.unfinished().await?).unwrap_or_default();
        progress.show(
            so_far.saturating_sub(left),
            work.events.len() as u64,
            &format!("({so_far} created)"),
        );
        if creators.is_empty() && left == 0 {
            return Ok(created);
        }
        if last != (so_far, left) || left == 0 {
            (last, moved) = ((so_far, left), Instant::now());
        }
        if moved.elapsed() > STANDSTILL {
            return Err(Error::Failed(format!(
                "no progress for {STANDSTILL:?}: {so_far} jobs were created and {left} of them \
                 have not run"
            )));
        }
    }
}

/// Returns the number of creators: one on SQLite, which has one writer; on PostgreSQL some, which
/// leaves connections to the node.
fn creators_of(database: &Database) -> usize {
    match database {
        Database::Postgres(_) => 4,
        Database::Sqlite(_) => 1,
    }
}

/// Divides the events among the creators. A case has one creator and keeps the order of the log.
fn shares(events: &[Event], creators: usize) -> Vec<Vec<usize>> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut shares = vec![Vec::new(); creators];
    for (index, event) in events.iter().enumerate() {
        let hash =
            usize::try_from(hasher.hash_one(&event.case) % creators as u64).unwrap_or_default();
        if let Some(share) = shares.get_mut(hash) {
            share.push(index);
        }
    }
    shares
}

async fn create(work: &Work, events: Vec<usize>) -> Result<Vec<Created>, StoreError> {
    let mut created = Vec::with_capacity(events.len());
    let first = work.events.first().map(|e| e.at);
    for index in events {
        let Some(event) = work.events.get(index) else {
            continue;
        };
        let after = first
            .and_then(|first| (event.at - first).to_std().ok())
            .unwrap_or_default();
        let wait = work
            .speed
            .squeeze(after)
            .saturating_sub(work.began.elapsed());
        if !wait.is_zero() {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = work.stop.cancelled() => break,
            }
        }
        if work.stop.is_cancelled() {
            break;
        }
        let id = create_one(work, event).await?;
        created.push(Created {
            event: index,
            id,
            committed_at: work.clock.now(),
        });
        work.created.fetch_add(1, Ordering::Relaxed);
    }
    Ok(created)
}

/// Creates one job. Repeats a transaction that failed by a conflict or a broken connection. Does
/// not repeat it after a COMMIT without an answer, since it may have committed.
async fn create_one(work: &Work, event: &Event) -> Result<JobId, StoreError> {
    let mut attempt = 1_u32;
    loop {
        let job = event.job(work.run);
        let id = job.id();
        match work.creator.create_all(vec![job]).await {
            Ok(_) => return Ok(id),
            Err(error) if error.is_transient() && attempt < 5 => {
                tracing::debug!(%error, attempt, "can't create the job of an event; trying again");
                tokio::time::sleep(Duration::from_millis(100) * attempt).await;
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_one_creator_and_keeps_its_order() {
        let events: Vec<Event> = (0..100)
            .map(|n| Event {
                activity: "A".to_owned(),
                case: format!("case-{}", n % 7),
                position: n / 7 + 1,
                at: DateTime::UNIX_EPOCH,
                resource: None,
            })
            .collect();
        let shares = shares(&events, 4);
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 100);
        for case in 0..7 {
            let has = |share: &&Vec<usize>| share.iter().any(|i| i % 7 == case);
            assert_eq!(shares.iter().filter(has).count(), 1);
        }
        assert!(shares.iter().all(|share| share.is_sorted()));
    }
}
