//! Locking, as far as the dialects share it: the hints of a batch as a statement's parameters, and
//! the rows of its answer.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jobwire_core::store::{ClaimPage, Claimable, LockTerms, Locked, Refusal};
use jobwire_core::{Hint, StoreError};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};

use crate::columns::Wanted;
use crate::decode::Decoder;
use crate::dialect::Dialect;
use crate::id::engine_id;

/// The pauses before the repeated looks for a hinted job that is not visible. A hint can be ahead
/// of the visibility of its row: 11.7 ms at worst were measured.
const LOOK_AGAIN: [Duration; 6] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
];
/// The age of a commit up to which its hint may be ahead of its row.
const FRESH: chrono::Duration = chrono::Duration::seconds(1);

/// Locks the jobs of these hints. A job that is not visible yet is looked for again.
pub(crate) async fn lock_hinted(
    dialect: &dyn Dialect,
    pool: &PgPool,
    terms: &LockTerms,
    hints: &[Hint],
) -> Result<Locked, StoreError> {
    let mut answer = Locked::default();
    let mut open = open_hints(hints, &mut answer);
    let mut pauses = LOOK_AGAIN.iter();
    while !open.is_empty() {
        let gone = lock_once(dialect, pool, terms, &open, &mut answer).await?;
        let since = chrono::Utc::now() - FRESH;
        let (fresh, gone): (Vec<&Hint>, Vec<&Hint>) = gone
            .into_iter()
            .partition(|hint| hint.committed_at.is_some_and(|at| at > since));
        let gone = gone.into_iter().map(|hint| (hint.id, Refusal::Gone));
        answer.refused.extend(gone);
        let Some(pause) = pauses.next().filter(|_| !fresh.is_empty()) else {
            let gone = fresh.into_iter().map(|hint| (hint.id, Refusal::Gone));
            answer.refused.extend(gone);
            break;
        };
        tokio::time::sleep(*pause).await;
        open = fresh;
    }
    Ok(answer)
}

/// Returns the hints that may be of the engine's jobs, each job once. Refuses the others.
pub(crate) fn open_hints<'h>(hints: &'h [Hint], answer: &mut Locked) -> Vec<&'h Hint> {
    let mut seen = HashSet::new();
    let mut open = Vec::new();
    for hint in hints {
        if engine_id(hint.id).is_none() {
            answer.refused.push((hint.id, Refusal::Gone));
        } else if seen.insert(hint.id) {
            open.push(hint);
        }
    }
    open
}

/// Sends the statement once. Returns the hints whose jobs do not exist.
async fn lock_once<'h>(
    dialect: &dyn Dialect,
    pool: &PgPool,
    terms: &LockTerms,
    hints: &[&'h Hint],
    answer: &mut Locked,
) -> Result<Vec<&'h Hint>, StoreError> {
    let mut wanted = Wanted::default();
    let mut by_id = HashMap::with_capacity(hints.len());
    for hint in hints {
        if let Some(id) = engine_id(hint.id) {
            wanted.push(id.clone(), hint.instance.clone());
            by_id.insert(id, *hint);
        }
    }
    let decoder = dialect.decoder();
    let (mut gone, before) = (Vec::new(), answer.jobs.len());
    for row in &dialect.send_lock(pool, terms, &wanted).await? {
        if row.try_get::<Option<String>, _>("id_")?.is_some() {
            answer.jobs.extend(decoder.locked(row)?);
        }
        let Some(hinted) = row.try_get::<Option<String>, _>("hinted")? else {
            continue;
        };
        let Some(hint) = by_id.get(&hinted) else {
            continue;
        };
        let class: String = row.try_get("class")?;
        match &*class {
            "locked-now" => {}
            "gone" => gone.push(*hint),
            // The job exists, and its hint came too early. Another hint follows when it is ready.
            "not-ready" => answer.refused.push((hint.id, Refusal::Gone)),
            other => {
                let why = Refusal::parse(other).unwrap_or(Refusal::Busy);
                if why == Refusal::Unserved {
                    answer.unserved.push((hint.id, decoder.needs(row)?));
                }
                answer.refused.push((hint.id, why));
            }
        }
    }
    // One job of a batch is enough for the check of the zone.
    if let Some(locked) = answer.jobs.get(before) {
        dialect.zone().note_job(&locked.job);
    }
    Ok(gone)
}

/// Returns a page of a claim from a slice of jobs with the columns `id_`, `process_instance_id_`
/// and `is_free`, in the order of their ids.
pub(crate) fn claimable(
    decoder: &Decoder,
    rows: &[PgRow],
    page: &ClaimPage,
    look_at: i64,
) -> Result<Claimable, StoreError> {
    let mut found = Claimable::default();
    let mut last = None;
    for row in rows {
        let text: String = row.try_get("id_")?;
        let Some(id) = decoder.job_id(&text) else {
            continue;
        };
        last = Some(id);
        if row.try_get("is_free")? {
            let instance = row.try_get("process_instance_id_")?;
            found.hints.push(Hint {
                instance,
                ..Hint::new(id)
            });
        }
        if i64::try_from(found.hints.len()).is_ok_and(|found| found >= page.at_most) {
            found.after = last;
            return Ok(found);
        }
    }
    let is_full = i64::try_from(rows.len()).is_ok_and(|seen| seen >= look_at);
    found.after = last.filter(|_| is_full);
    Ok(found)
}
