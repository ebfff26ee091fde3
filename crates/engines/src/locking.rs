//! What the dialects share about locks: the hints of a batch as a statement's parameters, and the
//! rows of its answer.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use jobwire_core::job::LockToken;
use jobwire_core::job::scope::Names;
use jobwire_core::store::{ClaimPage, Claimable, LockTerms, Locked, Refusal};
use jobwire_core::{Hint, JobId, NodeId, StoreError};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};

use crate::decode::Decoder;
use crate::dialect::Dialect;
use crate::id::engine_id;
use crate::owner::owner;

/// The pauses before a job that its hint names and that is not visible is looked for again. A hint
/// can be ahead of the visibility of its row: 11.7 ms at worst were measured.
const LOOK_AGAIN: [Duration; 6] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
];
/// A hint of a commit that is longer ago is not ahead of its row.
const FRESH: chrono::Duration = chrono::Duration::seconds(1);

/// Jobs or instances to lock, as the statement's parameters.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) ids: Vec<Option<String>>,
    pub(crate) instances: Vec<Option<String>>,
}

impl Wanted {
    /// Any job of these instances.
    pub(crate) fn of_instances(instances: Vec<String>) -> Self {
        Self {
            ids: vec![None; instances.len()],
            instances: instances.into_iter().map(Some).collect(),
        }
    }

    fn push(&mut self, id: String, instance: Option<String>) {
        self.ids.push(Some(id));
        self.instances.push(instance);
    }
}

/// Locks the jobs of these hints. A job that is not visible yet is looked for again.
pub(crate) async fn lock_hinted(
    dialect: &dyn Dialect,
    pool: &PgPool,
    terms: &LockTerms,
    hints: &[Hint],
) -> Result<Locked, StoreError> {
    let mut answer = Locked::default();
    let mut seen = HashSet::new();
    let mut open: Vec<&Hint> = Vec::new();
    for hint in hints {
        if engine_id(hint.id).is_none() {
            answer.refused.push((hint.id, Refusal::Gone));
        } else if seen.insert(hint.id) {
            open.push(hint);
        }
    }
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

/// Sends the statement once. Returns the hints whose jobs are not there.
async fn lock_once<'h>(
    dialect: &dyn Dialect,
    pool: &PgPool,
    terms: &LockTerms,
    hints: &[&'h Hint],
    answer: &mut Locked,
) -> Result<Vec<&'h Hint>, StoreError> {
    let mut wanted = Wanted::default();
    for hint in hints {
        if let Some(id) = engine_id(hint.id) {
            wanted.push(id, hint.instance.clone());
        }
    }
    let decoder = dialect.decoder();
    let mut gone = Vec::new();
    for row in &dialect.send_lock(pool, terms, &wanted).await? {
        if row.try_get::<Option<String>, _>("id_")?.is_some() {
            answer.jobs.extend(decoder.locked(row)?);
        }
        let Some(hinted) = row.try_get::<Option<String>, _>("hinted")? else {
            continue;
        };
        let Some(hint) = hints
            .iter()
            .find(|hint| engine_id(hint.id).as_ref() == Some(&hinted))
        else {
            continue;
        };
        let class: String = row.try_get("class")?;
        match &*class {
            "locked-now" => {}
            "gone" => gone.push(*hint),
            // It is there, and its hint came too early: another one follows when it is ready.
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
    Ok(gone)
}

/// Returns a page of a claim from a slice of jobs with the columns `id_`, `process_instance_id_` and
/// `is_free`, in the order of their ids.
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

/// Locks as a statement's parameters: ids, owners and instances.
pub(crate) type Columns = (Vec<String>, Vec<String>, Vec<Option<String>>);

/// Returns the columns of these locks.
pub(crate) fn columns<'a>(node: NodeId, held: impl Iterator<Item = &'a LockToken>) -> Columns {
    let mut columns = Columns::default();
    for held in held {
        // Every held job came from the engine's tables.
        if let Some(id) = engine_id(held.id) {
            columns.0.push(id);
            columns.1.push(owner(node, held.fence));
            columns.2.push(held.instance.clone());
        }
    }
    columns
}

/// Returns the columns of these ids.
pub(crate) fn those((ids, owners, instances): Columns, wanted: &HashSet<String>) -> Columns {
    let mut kept = Columns::default();
    for ((id, owner), instance) in ids.into_iter().zip(owners).zip(instances) {
        if wanted.contains(&id) {
            kept.0.push(id);
            kept.1.push(owner);
            kept.2.push(instance);
        }
    }
    kept
}

/// Returns whether the job is still executable and locked by this owner.
pub(crate) async fn still_ours(pool: &PgPool, id: JobId, owner: &str) -> Result<bool, StoreError> {
    let Some(id) = engine_id(id) else {
        return Ok(false);
    };
    let ours: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM act_ru_job WHERE id_ = $1 AND lock_owner_ = $2)",
    )
    .bind(id)
    .bind(owner)
    .fetch_one(pool)
    .await?;
    Ok(ours)
}

/// Returns the names of a scope as a parameter; NULL for all.
pub(crate) fn names(names: &Names) -> Option<Vec<String>> {
    let names: Option<&BTreeSet<String>> = names.as_ref();
    names.map(|names| names.iter().cloned().collect())
}

/// Returns the ids as texts of the engine. Ids of no engine are left out.
pub(crate) fn texts(ids: impl IntoIterator<Item = JobId>) -> Vec<String> {
    ids.into_iter().filter_map(engine_id).collect()
}
