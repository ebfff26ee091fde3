//! Locking: of jobs that hints name, of the next jobs of instances, and of jobs that a claim finds.
//!
//! A hint of a job with an instance means "try this instance": the first unlocked job of the
//! instance is locked, in the order of creation. The lock of the instance and that of the job are
//! written in one statement, with the same owner.
//!
//! The lock raises `REV_`, as the engine's own does. An engine node that polls reads unlocked rows
//! and locks them by a later statement `WHERE REV_ =` what it has read. Without a new `REV_` that
//! statement would replace a lock which was written in between, and both would execute the job.
//!
//! A statement that finds an instance held has locked its row for a moment. The end of the holder
//! locks that row, too, and looks for the next job afterwards, so one of both sees a new job.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::job::scope::{Names, Needs};
use jobwire_core::store::{ClaimOf, ClaimPage, Claimable, LockTerms, Locked, Refusal};
use jobwire_core::{Hint, JobId, StoreError};
use sqlx::postgres::PgRow;
use sqlx::{Executor, PgPool, Postgres, Row};

use super::sql::{in_scope, job_columns, local_now, of_processes, unlocked};
use super::{Flowable, decode};
use crate::id::engine_id;

/// `$2`: ids, `$3`: the instance that each hint names, `$4`: the owner without its fence, `$5`: the
/// lease, `$6` and `$7`: tenants and categories.
///
/// * `free` are the rows of instances that no other transaction has locked.
/// * `firsts` are the jobs to lock: no other job of their instance is locked, also not by an engine
///   node that polls.
const LOCK: &str = concat!(
    "
WITH hinted AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::text[]) AS h(id, inst)
), named AS MATERIALIZED (
    SELECT h.id, coalesce(j.process_instance_id_, CASE WHEN j.id_ IS NULL THEN h.inst END) AS inst, j.id_ IS NOT NULL AS is_here,
        NOT ",
    unlocked!("j"),
    " AS is_locked, ",
    of_processes!("j"),
    " AND ",
    in_scope!("j", "$6", "$7"),
    " AS is_served, j.handler_type_, j.tenant_id_, j.category_
    FROM hinted h LEFT JOIN act_ru_job j ON j.id_ = h.id
), free AS MATERIALIZED (
    SELECT e.id_, e.lock_time_ IS NOT NULL OR e.lock_owner_ IS NOT NULL AS is_held, e.suspension_state_ = 2 AS is_suspended
    FROM act_ru_execution e WHERE e.id_ IN (SELECT inst FROM named) ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED
), firsts AS MATERIALIZED (
    SELECT f.id_ AS inst, c.id_ FROM free f CROSS JOIN LATERAL (
        SELECT j.id_ FROM act_ru_job j
        WHERE j.process_instance_id_ = f.id_ AND ",
    unlocked!("j"),
    " AND (",
    of_processes!("j"),
    ") AND ",
    in_scope!("j", "$6", "$7"),
    "
        ORDER BY j.create_time_, j.id_ LIMIT 1
    ) c
    WHERE NOT f.is_held AND f.is_suspended IS NOT TRUE
      AND NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = f.id_ AND s.lock_exp_time_ IS NOT NULL)
), chosen AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j
    WHERE j.id_ IN (SELECT id_ FROM firsts UNION SELECT id FROM named WHERE is_here AND inst IS NULL AND is_served) AND ",
    unlocked!("j"),
    "
    ORDER BY j.id_ FOR NO KEY UPDATE SKIP LOCKED
), fenced AS MATERIALIZED (
    SELECT id_, nextval('jobwire_engine.fence') AS fence FROM chosen
), locked AS (
    UPDATE act_ru_job j SET rev_ = j.rev_ + 1, lock_owner_ = $4 || f.fence, lock_exp_time_ = ",
    local_now!(),
    " + $5
    FROM fenced f WHERE j.id_ = f.id_
    RETURNING ",
    job_columns!("j"),
    ", f.fence
), held AS (
    UPDATE act_ru_execution e SET lock_owner_ = $4 || f.fence, lock_time_ = ",
    local_now!(),
    " + $5
    FROM fenced f JOIN firsts ON firsts.id_ = f.id_ WHERE e.id_ = firsts.inst
)
SELECT n.id AS hinted, n.inst AS hinted_instance, n.handler_type_ AS needs_type, n.tenant_id_ AS needs_tenant, n.category_ AS needs_category,
    CASE WHEN l.id_ IS NOT NULL THEN 'locked-now'
        WHEN NOT n.is_here THEN 'gone'
        WHEN n.is_locked THEN 'locked'
        WHEN n.is_served IS NOT TRUE THEN 'unserved'
        WHEN n.inst IS NULL OR f.id_ IS NULL THEN 'busy'
        WHEN f.is_suspended THEN 'suspended'
        WHEN f.is_held THEN 'instance-held'
        WHEN firsts.id_ = n.id THEN 'busy'
        ELSE 'instance-held' END AS class,
    l.*
FROM named n LEFT JOIN free f ON f.id_ = n.inst LEFT JOIN firsts ON firsts.inst = n.inst
FULL JOIN locked l ON l.id_ = n.id"
);

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
pub(super) struct Wanted {
    ids: Vec<Option<String>>,
    instances: Vec<Option<String>>,
}

impl Wanted {
    /// Any job of these instances.
    pub(super) fn of_instances(instances: Vec<String>) -> Self {
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

impl Flowable {
    /// Locks the jobs of these hints.
    pub(super) async fn lock_hinted(
        &self,
        pool: &PgPool,
        terms: &LockTerms,
        hints: &[Hint],
    ) -> Result<Locked, StoreError> {
        let mut answer = Locked::default();
        let mut seen = HashSet::new();
        let mut open: Vec<&Hint> = Vec::new();
        for hint in hints.iter().filter(|hint| seen.insert(hint.id)) {
            match engine_id(hint.id) {
                Some(_) => open.push(hint),
                // Not an id of this engine: a forged hint.
                None => answer.refused.push((hint.id, Refusal::Gone)),
            }
        }
        let mut pauses = LOOK_AGAIN.iter();
        loop {
            let mut connection = pool.acquire().await?;
            let gone = self.lock_once(&mut *connection, terms, &open, &mut answer);
            let gone = gone.await?;
            drop(connection);
            let since = chrono::Utc::now() - FRESH;
            let (fresh, gone): (Vec<&Hint>, Vec<&Hint>) = gone
                .into_iter()
                .partition(|hint| hint.committed_at.is_some_and(|at| at > since));
            let gone = gone.into_iter().map(|hint| (hint.id, Refusal::Gone));
            answer.refused.extend(gone);
            let Some(pause) = pauses.next().filter(|_| !fresh.is_empty()) else {
                let gone = fresh.into_iter().map(|hint| (hint.id, Refusal::Gone));
                answer.refused.extend(gone);
                return Ok(answer);
            };
            tokio::time::sleep(*pause).await;
            open = fresh;
        }
    }

    /// Sends the statement once. Returns the hints whose jobs are not there.
    async fn lock_once<'h>(
        &self,
        connection: impl Executor<'_, Database = Postgres>,
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
        let rows = self.send_lock(connection, terms, &wanted).await?;
        let mut gone = Vec::new();
        for row in &rows {
            answer.jobs.extend(self.locked_job(row)?);
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
                other => {
                    let why = Refusal::parse(other).unwrap_or(Refusal::Busy);
                    if why == Refusal::Unserved {
                        answer.unserved.push((hint.id, needs(row)?));
                    }
                    answer.refused.push((hint.id, why));
                }
            }
        }
        Ok(gone)
    }

    /// Locks the first unlocked job of each of these instances.
    pub(super) async fn lock_next(
        &self,
        connection: impl Executor<'_, Database = Postgres>,
        terms: &LockTerms,
        instances: Vec<String>,
    ) -> Result<Vec<LockedJob>, StoreError> {
        let wanted = Wanted::of_instances(instances);
        let rows = self.send_lock(connection, terms, &wanted).await?;
        let mut locked = Vec::new();
        for row in &rows {
            locked.extend(self.locked_job(row)?);
        }
        Ok(locked)
    }

    fn locked_job(&self, row: &PgRow) -> Result<Option<LockedJob>, StoreError> {
        if row.try_get::<Option<String>, _>("id_")?.is_none() {
            return Ok(None);
        }
        decode::locked(row, &self.lane)
    }

    async fn send_lock(
        &self,
        connection: impl Executor<'_, Database = Postgres>,
        terms: &LockTerms,
        wanted: &Wanted,
    ) -> Result<Vec<PgRow>, StoreError> {
        let owner = format!("{}{}:", crate::owner::PREFIX, terms.owner);
        let rows = sqlx::query(LOCK)
            .bind(&self.zone)
            .bind(&wanted.ids)
            .bind(&wanted.instances)
            .bind(owner)
            .bind(terms.lease)
            .bind(names(&terms.scope.tenants))
            .bind(names(&terms.scope.categories));
        Ok(rows.fetch_all(connection).await?)
    }

    /// Returns the jobs of a page of a claim, in the order of their ids.
    pub(super) async fn claimable_page(
        &self,
        pool: &PgPool,
        page: &ClaimPage,
    ) -> Result<Claimable, StoreError> {
        // A lock that has expired is cleared by the leader, which hints the job.
        let ClaimOf::Next { after, look_at } = page.of else {
            return Ok(Claimable::default());
        };
        if page.lane != self.lane {
            return Ok(Claimable::default());
        }
        let rows = sqlx::query(CLAIMABLE)
            .bind(after.and_then(engine_id))
            .bind(look_at)
            .fetch_all(pool)
            .await?;
        let mut found = Claimable::default();
        let mut last = None;
        for row in &rows {
            let text: String = row.try_get("id_")?;
            let Some(id) = decode::job_id(&text) else {
                continue;
            };
            last = Some(id);
            let is_free: bool = row.try_get("is_free")?;
            if is_free {
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
}

/// Selects a slice of the jobs, in the order of their ids, and which of them could be locked.
const CLAIMABLE: &str = concat!(
    "
SELECT j.id_, j.process_instance_id_, ",
    unlocked!("j"),
    " AND NOT EXISTS (
        SELECT FROM act_ru_execution e WHERE e.id_ = j.process_instance_id_ AND e.lock_time_ IS NOT NULL) AS is_free
FROM act_ru_job j
WHERE ($1::text IS NULL OR j.id_ > $1) AND (",
    of_processes!("j"),
    ")
ORDER BY j.id_ LIMIT $2"
);

fn names(names: &Names) -> Option<Vec<String>> {
    let names: Option<&BTreeSet<String>> = names.as_ref();
    names.map(|names| names.iter().cloned().collect())
}

fn needs(row: &PgRow) -> Result<Needs, StoreError> {
    let handler: Option<String> = row.try_get("needs_type")?;
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(Needs {
        tenant: some(row.try_get("needs_tenant")?),
        category: some(row.try_get("needs_category")?),
        ..Needs::of(decode::type_of(handler.as_deref()))
    })
}

/// Returns the ids as texts of the engine. Ids of no engine are left out.
pub(super) fn texts(ids: impl IntoIterator<Item = JobId>) -> Vec<String> {
    ids.into_iter().filter_map(engine_id).collect()
}
