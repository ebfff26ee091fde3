//! Locks, renews and settles jobs over the endpoint, in batches of its size.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jobwire_core::job::scope::Needs;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{BatchOutcome, Handoff, LockTerms, Locked, Refusal, Renewed};
use jobwire_core::{Fence, Hint, JobId, NodeId};

use super::wire::{self, Held, Jobs, Lock, Lost, Renew, Settle, Settled, Terms, Wanted, millis};
use super::{EndpointStore, Result};
use crate::doubt::Asked;
use crate::fate::Fate;
use crate::id::{engine_id, job_id};
use crate::locking::open_hints;
use crate::owner::{owner, parse};
use crate::row::EngineRow;

/// Maximum number of jobs of one request.
const BATCH: usize = 200;
/// Maximum number of known locks of one request. The endpoint refuses more than 10,000.
const MOST_KNOWN: usize = 9_000;
/// The pauses before further tries for rows that the engine has locked.
const BUSY: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(15),
    Duration::from_millis(40),
];
/// The pauses before further reads of a hinted job that is not visible yet. In a replicated
/// database a hint can be ahead of its row.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(10)];
/// The age of a commit from which its hint is not ahead of its row.
const FRESH: chrono::Duration = chrono::Duration::seconds(1);

/// The maximum length of an engine's id.
const LONGEST_INSTANCE: usize = 64;

impl EndpointStore {
    /// Locks the jobs of these hints.
    pub(super) async fn lock_hinted(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        let mut answer = Locked::default();
        let mut open = open_hints(hints, &mut answer);
        let mut pauses = LOOK_AGAIN.iter();
        while !open.is_empty() {
            let mut gone = Vec::new();
            for batch in open.chunks(BATCH) {
                match self.lock_batch(terms, batch, &mut answer).await {
                    Ok(missing) => gone.extend(missing),
                    // Jobs that are already locked are kept. The rest is hinted again.
                    Err(error) if answer.jobs.is_empty() => return Err(error),
                    Err(_) => {
                        let rest = batch.iter().map(|hint| (hint.id, Refusal::Busy));
                        answer.refused.extend(rest);
                    }
                }
            }
            let since = chrono::Utc::now() - FRESH;
            let (fresh, gone): (Vec<&Hint>, Vec<&Hint>) = gone
                .into_iter()
                .partition(|hint| hint.committed_at.is_some_and(|at| at > since));
            let pause = pauses.next().filter(|_| !fresh.is_empty());
            let left = if pause.is_some() { &[][..] } else { &fresh };
            let gone = gone.iter().chain(left);
            let gone = gone.map(|hint| (hint.id, Refusal::Gone));
            answer.refused.extend(gone);
            let Some(pause) = pause else { break };
            tokio::time::sleep(*pause).await;
            open = fresh;
        }
        Ok(answer)
    }

    /// Sends one batch. Returns the hints whose jobs do not exist.
    async fn lock_batch<'h>(
        &self,
        terms: &LockTerms,
        hints: &[&'h Hint],
        answer: &mut Locked,
    ) -> Result<Vec<&'h Hint>> {
        let wanted = hints.iter().filter_map(|hint| {
            Some(Wanted {
                id: engine_id(hint.id)?,
                // No instance has a longer id. The endpoint would refuse the whole batch.
                instance: hint
                    .instance
                    .as_deref()
                    .filter(|name| name.len() <= LONGEST_INSTANCE),
            })
        });
        let lock = Lock {
            terms: Terms::of(terms, self.fences(hints.len())),
            jobs: wanted.collect(),
        };
        let asked = self.0.client.ask::<wire::Locked>("lock", "lock", &lock);
        let locked = self.locking(asked).await?;
        answer
            .jobs
            .extend(locked.jobs.iter().filter_map(|row| self.locked(row)));
        let mut gone = Vec::new();
        for refused in &locked.refused {
            let Ok(id) = job_id(&refused.id) else {
                continue;
            };
            let Some(hint) = hints.iter().find(|hint| hint.id == id) else {
                continue;
            };
            match &*refused.why {
                "gone" => gone.push(*hint),
                // It is hinted again when it becomes due.
                "not-ready" => answer.refused.push((id, Refusal::Gone)),
                why => {
                    let why = Refusal::parse(why).unwrap_or(Refusal::Busy);
                    if why == Refusal::Unserved
                        && let Some(job) = &refused.job
                    {
                        answer.unserved.push((id, self.needs(job)));
                    }
                    answer.refused.push((id, why));
                }
            }
        }
        Ok(gone)
    }

    /// Records a doubt unless the answer came: the answer may have contained locks.
    async fn locking<T>(&self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let mut doubt = Asked(&self.0.in_doubt, true);
        let answer = asked.await;
        doubt.1 = answer.as_ref().is_err_and(|error| !error.changed_nothing());
        answer
    }

    /// Returns a job that the endpoint has locked. Its owner contains the fence.
    fn locked(&self, row: &EngineRow) -> Option<LockedJob> {
        let (_, fence) = row.owner.as_deref().and_then(parse)?;
        self.0.decoder.job(row).map(|job| LockedJob {
            locked_at: job.ready_at,
            job: Arc::new(job),
            fence,
            strikes: 0,
        })
    }

    pub(super) fn needs(&self, row: &EngineRow) -> Needs {
        Needs {
            tenant: row.tenant.clone(),
            category: row.category.clone(),
            ..Needs::of(self.0.decoder.type_of(row.handler.as_deref()))
        }
    }

    /// Extends locks without waiting for rows.
    pub(super) async fn renew_held(
        &self,
        node: NodeId,
        lease: Duration,
        held: &[LockToken],
    ) -> Result<Renewed> {
        let mut answer = Renewed::default();
        for batch in held.chunks(BATCH) {
            let renew = Renew {
                lease: millis(lease),
                held: batch
                    .iter()
                    .filter_map(|held| Held::of(node, held, false))
                    .collect(),
            };
            let within = self.within().min(lease);
            let client = &self.0.client;
            let asked = client.ask_within::<wire::Renewed>("renew", "renew", &renew, within);
            let renewed = asked.await?;
            answer.renewed.extend(ids(&renewed.renewed));
            answer.busy.extend(ids(&renewed.busy));
        }
        Ok(answer)
    }

    /// Extends and returns the locks of a node whose fences are not in this list.
    pub(super) async fn lost_locks(
        &self,
        node: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>> {
        if !self.0.in_doubt.swap(false, Ordering::SeqCst) {
            return Ok(Vec::new());
        }
        let lost = Lost {
            node: node.to_string(),
            lease: millis(lease),
            // An execution without an answer may still run. Its lock stays, and its job is not run
            // again.
            known: known
                .iter()
                .copied()
                .chain(self.0.parts.calls.unanswered())
                .take(MOST_KNOWN)
                .map(|fence| owner(node, fence))
                .collect(),
        };
        let mut doubt = Asked(&self.0.in_doubt, true);
        let found: Jobs = self.0.client.ask("unknown", "held", &lost).await?;
        doubt.1 = false;
        let jobs = found.jobs.iter();
        Ok(jobs.filter_map(|row| self.locked(row)).collect())
    }

    /// Reads the fates of jobs whose executions have ended, releases their locks, and hands off
    /// their instances.
    pub(super) async fn settle(
        &self,
        statement: &'static str,
        node: NodeId,
        held: &[LockToken],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let mut outcome = BatchOutcome::default();
        // This node has no slot for a job that it releases, and none for its siblings.
        let (back, ended): (Vec<LockToken>, Vec<LockToken>) = held
            .iter()
            .cloned()
            .partition(|held| self.0.parts.calls.is_given_back(held.fence));
        let batches = back.chunks(BATCH).map(|batch| (batch, &Handoff::Hint));
        let batches = batches.chain(ended.chunks(BATCH).map(|batch| (batch, then)));
        for (batch, then) in batches {
            let mut open: Vec<&LockToken> = batch.iter().collect();
            let mut pauses = BUSY.iter();
            loop {
                let settled = self.settle_batch(statement, node, &open, then).await;
                let settled = match settled {
                    Ok(settled) => settled,
                    Err(error) if outcome.applied.is_empty() => return Err(error),
                    Err(_) => {
                        outcome.left.extend(open.iter().map(|held| held.id));
                        break;
                    }
                };
                let busy = self.note(statement, settled, &mut outcome);
                if busy.is_empty() {
                    break;
                }
                let Some(pause) = pauses.next() else {
                    outcome.left.extend(busy);
                    break;
                };
                tokio::time::sleep(*pause).await;
                open.retain(|held| busy.contains(&held.id));
            }
        }
        Ok(outcome)
    }

    async fn settle_batch(
        &self,
        statement: &'static str,
        node: NodeId,
        held: &[&LockToken],
        then: &Handoff,
    ) -> Result<Settled> {
        let calls = &self.0.parts.calls;
        let settle = Settle {
            held: held
                .iter()
                .filter_map(|held| Held::of(node, held, calls.is_open(held.fence)))
                .collect(),
            take: match then {
                Handoff::Take(terms) => Some(Terms::of(terms, self.fences(held.len()))),
                Handoff::Hint => None,
            },
        };
        let client = &self.0.client;
        self.locking(client.ask::<Settled>(statement, "settle", &settle))
            .await
    }

    /// Adds the settled jobs. Returns the jobs whose rows the engine has locked.
    fn note(
        &self,
        statement: &str,
        settled: Settled,
        outcome: &mut BatchOutcome,
    ) -> HashSet<JobId> {
        let mut busy = HashSet::new();
        for told in &settled.fates {
            let Ok(id) = job_id(&told.id) else { continue };
            let fate = fate(&told.fate);
            match fate {
                Fate::Busy => {
                    busy.insert(id);
                    continue;
                }
                Fate::Lost => {}
                _ => outcome.applied.push(id),
            }
            self.0.parts.settled(statement, id, fate);
            let due = told.due.filter(|_| fate == Fate::Retry);
            outcome.timer = outcome.timer.into_iter().chain(due).min();
        }
        let next = settled.next.iter().filter_map(|row| self.locked(row));
        outcome.next.extend(next);
        let ready = settled.ready.iter().filter_map(|row| self.ready(row));
        outcome.ready.extend(ready);
        busy
    }

    /// Returns the hint of a job.
    pub(super) fn ready(&self, row: &EngineRow) -> Option<jobwire_core::hint::Ready> {
        let decoder = &self.0.decoder;
        decoder.ready(&row.id, row.instance.clone(), row.handler.as_deref())
    }
}

fn ids(texts: &[String]) -> impl Iterator<Item = JobId> + '_ {
    texts.iter().filter_map(|text| job_id(text).ok())
}

/// Returns the fate of this name in the contract. An unknown name leaves the lock.
fn fate(word: &str) -> Fate {
    match word {
        "done" => Fate::Done,
        "retry" => Fate::Retry,
        "dead-letter" => Fate::DeadLetter,
        "suspended" => Fate::Suspended,
        "released" => Fate::Released,
        "lost" => Fate::Lost,
        "busy" => Fate::Busy,
        _ => Fate::Unknown,
    }
}
