//! Turns the rows of `chaos.history` into the events of [`crate::history`].
//!
//! A transition of a job is one transaction that changes several rows. All changes that one
//! transaction made to one job are read together and become one or two events.

use super::ledger::Known;
use super::nonsense::NONSENSE;
use super::recorder;
use super::workload::Kind;
use crate::history::{Checker, Creation, Entry, Event, Limits, Micros, Outcome, Place, Report};
use crate::history::{Series, Strikes, Waits};
use jobwire_core::job::repeat::Repeat;
use jobwire_core::{Fence, JobId, NodeId};
use serde_json::Value;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use uuid::Uuid;

/// The history job by job, each in its order. If a server does not keep the times of commits
/// (`visible`), the times of the changes are used. Jobs of a foreign writer ([`NONSENSE`]) are left
/// out.
const HISTORY: &str = "
SELECT number, micros(at) AS at, micros(began) AS began,
    micros(coalesce(CASE WHEN current_setting('track_commit_timestamp')::boolean
        THEN pg_xact_commit_timestamp(transaction::xid) END, at)) AS visible,
    transaction::text::bigint AS transaction, what, job, owner, fence, micros(expires_at) AS expires_at, old_owner, old_fence,
    old_strikes, strikes, alone, retries, hints, micros(due_at) AS due_at, seq, instance, exclusive, type, payload, correlation, repeat, answer
FROM chaos.history h
WHERE NOT EXISTS (SELECT FROM chaos.history f WHERE f.job = h.job AND f.correlation = 'NONSENSE')
ORDER BY job, number";

/// Converts a time to microseconds since 1970, exactly.
const MICROS: &str = "
CREATE OR REPLACE FUNCTION pg_temp.micros(timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT (extract(epoch FROM $1) * 1000000)::bigint $$";

const FOUND: &str = "
SELECT id, 'executable' FROM jobwire.job UNION ALL SELECT id, 'timer' FROM jobwire.timer_job
UNION ALL SELECT id, 'suspended' FROM jobwire.suspended_job UNION ALL SELECT id, 'dead' FROM jobwire.dead_letter_job";

/// One row.
#[derive(Debug)]
struct Change {
    number: i64,
    at: Micros,
    began: Micros,
    visible: Micros,
    transaction: i64,
    what: String,
    owner: Option<Uuid>,
    fence: Option<i64>,
    expires_at: Option<Micros>,
    old_owner: Option<Uuid>,
    old_fence: Option<i64>,
    strikes: Option<Strikes>,
    retries: Option<i32>,
    hints: Option<i32>,
    due_at: Option<Micros>,
    created: Option<Created>,
    answer: Option<String>,
}

/// The columns that only a new job's row has.
#[derive(Debug)]
struct Created {
    seq: i64,
    instance: Option<String>,
    exclusive: bool,
    job_type: String,
    payload: Value,
    correlation: Uuid,
    repeat: Option<String>,
}

/// The number of jobs of each type.
#[derive(Clone, Debug, Default)]
pub struct Kinds(pub BTreeMap<String, u64>);

/// Reads the whole history and judges it. `ledger` holds the producers' records.
///
/// # Errors
/// If the database fails.
pub async fn check(
    url: &str,
    mut ledger: HashMap<JobId, Known>,
    limits: Limits,
) -> Result<(Report, Kinds), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql(MICROS).execute(&mut connection).await?;
    let mut found = HashMap::new();
    for row in sqlx::query(FOUND).fetch_all(&mut connection).await? {
        let place = match row.try_get::<&str, _>(1)? {
            "executable" => Place::Executable,
            "timer" => Place::Timer,
            "suspended" => Place::Suspended,
            _ => Place::DeadLetter,
        };
        found.insert(JobId::from_uuid(row.try_get(0)?), place);
    }
    // A function of a temporary schema must be qualified, and the declaration of a cursor takes no
    // parameters.
    let history = HISTORY
        .replace("micros(", "pg_temp.micros(")
        .replace("NONSENSE", &NONSENSE.to_string());
    let mut checker = Checker::new(limits);
    let mut kinds = Kinds::default();
    let mut job: Option<JobId> = None;
    let mut changes = Vec::new();
    let mut pages = connection.begin().await?;
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "DECLARE history NO SCROLL CURSOR FOR {history}"
    )))
    .execute(&mut *pages)
    .await?;
    let mut judge = |id: Option<JobId>, changes: &mut Vec<Change>| {
        if let Some(id) = id {
            let entries = entries(id, changes, ledger.remove(&id), found.get(&id), &mut kinds);
            checker.job(&entries);
            changes.clear();
        }
    };
    loop {
        let rows = sqlx::query("FETCH 5000 FROM history")
            .fetch_all(&mut *pages)
            .await?;
        if rows.is_empty() {
            break;
        }
        for row in rows {
            let id = JobId::from_uuid(row.try_get("job")?);
            if job != Some(id) {
                judge(job, &mut changes);
                job = Some(id);
            }
            changes.push(change(&row)?);
        }
    }
    judge(job, &mut changes);
    pages.rollback().await?;
    // Jobs without a row in the history.
    for (id, known) in ledger {
        checker.job(&unseen(id, known));
    }
    Ok((checker.finish(), kinds))
}

/// Returns all records of one job, as text for people.
///
/// # Errors
/// If the database fails.
pub async fn dump(url: &str, job: JobId) -> Result<Vec<String>, sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    let rows = sqlx::query(
        "SELECT json_strip_nulls(row_to_json(h))::text FROM chaos.history h WHERE job = $1 ORDER BY number",
    )
    .bind(job.uuid())
    .fetch_all(&mut connection)
    .await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

fn change(row: &PgRow) -> Result<Change, sqlx::Error> {
    let created = match row.try_get::<Option<i64>, _>("seq")? {
        None => None,
        Some(seq) => Some(Created {
            seq,
            instance: row.try_get("instance")?,
            exclusive: row.try_get("exclusive")?,
            job_type: row.try_get("type")?,
            payload: row.try_get("payload")?,
            correlation: row.try_get("correlation")?,
            repeat: row.try_get("repeat")?,
        }),
    };
    let fence: Option<i64> = row.try_get("fence")?;
    let owner: Option<Uuid> = row.try_get("owner")?;
    let strikes = match row.try_get::<Option<i32>, _>("strikes")? {
        None => None,
        Some(after) => {
            let old_owner: Option<Uuid> = row.try_get("old_owner")?;
            let ended = owner.is_none() && old_owner.is_some();
            Some(Strikes {
                before: row.try_get("old_strikes")?,
                after,
                taken_off: fence.filter(|_| ended).map(Fence::new),
                alone: row.try_get("alone")?,
            })
        }
    };
    Ok(Change {
        number: row.try_get("number")?,
        at: row.try_get("at")?,
        began: row.try_get("began")?,
        visible: row.try_get("visible")?,
        transaction: row.try_get("transaction")?,
        what: row.try_get("what")?,
        owner,
        fence,
        strikes,
        expires_at: row.try_get("expires_at")?,
        old_owner: row.try_get("old_owner")?,
        old_fence: row.try_get("old_fence")?,
        retries: row.try_get("retries")?,
        hints: row.try_get("hints")?,
        due_at: row.try_get("due_at")?,
        created,
        answer: row.try_get("answer")?,
    })
}

/// Returns the history of a job without a row.
fn unseen(id: JobId, known: Known) -> Vec<Entry> {
    // The database rolled back a transaction that did not end.
    let outcome = known.outcome.unwrap_or(Outcome::RolledBack);
    let creation = Creation {
        outcome,
        ..Creation::plain(0)
    };
    let mut entries = vec![Entry::at(0, 0, id, Event::Created(Arc::new(creation)))];
    if let Some(at) = known.published {
        entries.push(Entry::at(at, 1, id, Event::Published));
    }
    entries
}

/// Returns all events of one job.
fn entries(
    id: JobId,
    changes: &[Change],
    known: Option<Known>,
    found: Option<&Place>,
    kinds: &mut Kinds,
) -> Vec<Entry> {
    // Groups by transaction; a record of a handler is a group of its own.
    let mut groups: Vec<Vec<&Change>> = Vec::new();
    for change in changes {
        let by_handler = matches!(&*change.what, "start" | "end" | "effect");
        let group = groups.iter_mut().find(|group| {
            !by_handler
                && group.first().is_some_and(|first| {
                    first.transaction == change.transaction
                        && !matches!(&*first.what, "start" | "end" | "effect")
                })
        });
        match group {
            Some(group) => group.push(change),
            None => groups.push(vec![change]),
        }
    }
    let mut entries = Vec::new();
    for group in groups {
        let Some(last) = group.iter().max_by_key(|change| change.number) else {
            continue;
        };
        for event in events(&group, known, kinds) {
            entries.push(Entry {
                job: id,
                at: last.at,
                began: last.began,
                visible: last.visible,
                number: last.number.unsigned_abs(),
                event,
            });
        }
    }
    entries.sort_by_key(|entry| entry.number);
    if held_by_row(changes) {
        conclude_row_locks(&mut entries);
    }
    if let Some(known) = known {
        let first = entries.first().map_or(0, |entry| entry.number);
        if let Some(at) = known.published {
            entries.insert(
                entries.len().min(1),
                Entry::at(at, first, id, Event::Published),
            );
        }
    }
    if let Some(place) = found {
        let (at, number) = entries.last().map_or((0, 0), |e| (e.at, e.number));
        entries.push(Entry::at(at, number + 1, id, Event::Found(*place)));
    }
    entries
}

fn held_by_row(changes: &[Change]) -> bool {
    let created = changes.iter().filter_map(|change| change.created.as_ref());
    let mut kinds = created.filter_map(|created| Kind::of(&created.job_type));
    kinds.any(|kind| Kind::BY_ROW.contains(&kind))
}

/// Adds the events of row locks, which write nothing. A start under a lock that no lease has shown
/// was made under a row lock. No operator deletes jobs in such a history, so a deletion without a
/// lease was made by the last such run that had recorded that it was done.
fn conclude_row_locks(entries: &mut Vec<Entry>) {
    let mut leases = HashSet::new();
    let mut runs: Vec<(NodeId, Fence, bool)> = Vec::new();
    let mut seen: Vec<Entry> = Vec::with_capacity(entries.len());
    for mut entry in entries.drain(..) {
        match entry.event {
            Event::Locked { fence, .. } => {
                leases.insert(fence);
            }
            Event::Started { owner, fence } if !leases.contains(&fence) => {
                runs.push((owner, fence, false));
                let mut held = entry.clone();
                held.event = Event::RowHeld { owner, fence };
                seen.push(held);
            }
            Event::Ended {
                owner,
                fence,
                answer: crate::history::Answer::Done,
            } => {
                let run = runs.iter_mut().find(|run| (run.0, run.1) == (owner, fence));
                if let Some(run) = run {
                    run.2 = true;
                }
            }
            Event::Deleted => {
                let run = runs.iter().rev().find(|run| run.2);
                let (owner, fence) = run
                    .map_or((NodeId::from_uuid(Uuid::nil()), Fence::new(0)), |run| {
                        (run.0, run.1)
                    });
                entry.event = Event::RowCompleted { owner, fence };
            }
            _ => {}
        }
        seen.push(entry);
    }
    *entries = seen;
}

/// Returns the effects of one transaction on one job.
fn events(group: &[&Change], known: Option<Known>, kinds: &mut Kinds) -> Vec<Event> {
    let get = |what: &str| group.iter().copied().find(|change| change.what == what);
    let holder = |change: &Change| {
        (
            NodeId::from_uuid(change.owner.unwrap_or_default()),
            Fence::new(change.fence.unwrap_or_default()),
        )
    };
    if let [one] = group {
        let (owner, fence) = holder(one);
        match &*one.what {
            "start" => return vec![Event::Started { owner, fence }],
            "end" => {
                let answer = one.answer.as_deref().and_then(recorder::answer);
                let answer = answer.unwrap_or(crate::history::Answer::Again);
                return vec![Event::Ended {
                    owner,
                    fence,
                    answer,
                }];
            }
            "effect" => return vec![Event::Effect { fence }],
            _ => {}
        }
    }
    // A lease that was taken off its owner stays until the job is deleted; its deletion is no
    // event.
    let given_up = get("job_lease delete").filter(|change| change.owner.is_some());
    let (gone, ready) = (get("job delete"), get("job insert"));
    let (waits, woken) = (get("timer_job insert"), get("timer_job delete"));
    let aside = get("suspended_job insert");
    let back = get("suspended_job delete");
    let (dead, revived) = (get("dead_letter_job insert"), get("dead_letter_job delete"));
    // A job that is parked, or released before its start, keeps its strikes in a lease without an owner.
    let keeps = |change: &&Change| change.what == "job_lease insert" && change.owner.is_none();
    let kept = get("parked").is_some() || group.iter().any(keeps);
    let mut events = Vec::new();
    if let Some(lease) = given_up {
        let (owner, fence) = holder(lease);
        events.push(if gone.is_none() {
            if kept {
                Event::Parked { owner, fence }
            } else {
                Event::Released { owner, fence }
            }
        } else if let Some(waits) = waits {
            Event::Failed {
                owner,
                fence,
                retries: waits.retries.unwrap_or(-1),
                to: Waits::Timer(waits.due_at.unwrap_or_default()),
            }
        } else if let Some(aside) = aside {
            Event::Failed {
                owner,
                fence,
                retries: aside.retries.unwrap_or(-1),
                to: Waits::Suspended,
            }
        } else if dead.is_some() {
            Event::DeadLettered { owner, fence }
        } else {
            Event::Completed { owner, fence }
        });
        return events;
    }
    // The event that makes a job executable comes before a lock in the same transaction, as with a
    // single due timer.
    let moved = match (ready.or(waits), gone.or(woken).or(back).or(revived)) {
        (Some(new), None) => Some(created(new, waits.is_some(), known, kinds)),
        (Some(_), Some(_)) if back.is_some() => Some(Event::Activated {
            timer: waits.is_some(),
        }),
        (Some(new), Some(_)) if revived.is_some() => Some(Event::Revived {
            retries: new.retries.unwrap_or(0),
        }),
        (Some(_), Some(_)) => Some(Event::Ready),
        (None, Some(_)) if aside.is_some() => Some(Event::Suspended),
        (None, Some(_)) if dead.is_some() => dead.map(|_| Event::DeadLettered {
            owner: NodeId::from_uuid(Uuid::nil()),
            fence: Fence::new(0),
        }),
        (None, Some(_)) => Some(Event::Deleted),
        (None, None) => None,
    };
    events.extend(moved);
    for change in group {
        let (owner, fence) = holder(change);
        let expires_at = change.expires_at.unwrap_or_default();
        let locked = Event::Locked {
            owner,
            fence,
            expires_at,
        };
        match &*change.what {
            "job_lease insert" if change.owner.is_some() => events.push(locked),
            "job_lease update" if change.owner.is_none() && change.old_owner.is_some() => {
                events.push(Event::TakenOff { fence });
            }
            "job_lease update" if change.owner.is_some() && change.fence != change.old_fence => {
                events.push(locked);
            }
            "job_lease update" if change.owner.is_some() => events.push(Event::Renewed {
                owner,
                fence,
                expires_at,
            }),
            _ => {}
        }
        let strikes = change.strikes;
        let changed = strikes.filter(|s| s.taken_off.is_some() || s.before != s.after);
        events.extend(changed.map(Event::Strikes));
    }
    let hinted = get("job update").and_then(|change| change.hints);
    if hinted.is_some_and(|hints| hints > 0) {
        events.push(Event::Rehinted);
    }
    events
}

fn created(new: &Change, waits: bool, known: Option<Known>, kinds: &mut Kinds) -> Event {
    let Some(row) = &new.created else {
        return Event::Deleted;
    };
    *kinds.0.entry(row.job_type.clone()).or_default() += 1;
    let kind = Kind::of(&row.job_type);
    let series = row.repeat.as_deref().and_then(|repeat| {
        let repeat = Repeat::parse(repeat).ok()?;
        Some(Series {
            id: row.correlation,
            left: repeat.times?,
            every: i64::try_from(repeat.interval()?.as_micros()).ok()?,
        })
    });
    let parent = row.payload["parent"].as_str();
    let children = match kind {
        Some(Kind::Parent) => row.payload["children"].as_u64().unwrap_or(0),
        _ => 0,
    };
    // The row exists, so an unknown outcome is a commit. But a rollback that the producer recorded
    // counts as one, which the checker then reports.
    let outcome = match known.and_then(|known| known.outcome) {
        Some(Outcome::RolledBack) => Outcome::RolledBack,
        _ => Outcome::Committed,
    };
    Event::Created(Arc::new(Creation {
        instance: row.instance.as_deref().map(Into::into),
        exclusive: row.exclusive,
        order: row.seq,
        due: new.due_at,
        waits,
        retries: new.retries.unwrap_or(0),
        outcome,
        parent: parent.and_then(|parent| parent.parse().ok()),
        children: u32::try_from(children).unwrap_or(0),
        transactional: kind.is_some_and(Kind::in_transaction),
        timeout: kind == Some(Kind::Hanging),
        // A job that waited for a permit is hinted again, too.
        rare: kind.is_some_and(|kind| kind == Kind::Rare || kind.bound().is_some()),
        series,
    }))
}
