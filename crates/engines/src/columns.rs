//! Jobs, locks and names as parameters of statements.

use std::collections::{BTreeSet, HashSet};

use jobwire_core::job::LockToken;
use jobwire_core::job::scope::Names;
use jobwire_core::{JobId, NodeId, StoreError};
use sqlx::PgPool;

use crate::id::engine_id;
use crate::owner::owner;

/// Jobs or instances to lock, as the statement's parameters.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) ids: Vec<Option<String>>,
    pub(crate) instances: Vec<Option<String>>,
}

impl Wanted {
    /// Requests any job of these instances.
    pub(crate) fn of_instances(instances: Vec<String>) -> Self {
        Self {
            ids: vec![None; instances.len()],
            instances: instances.into_iter().map(Some).collect(),
        }
    }

    /// Adds a request for this job.
    pub(crate) fn push(&mut self, id: String, instance: Option<String>) {
        self.ids.push(Some(id));
        self.instances.push(instance);
    }
}

/// Locks as a statement's parameters: ids, owners and instances.
pub(crate) type Columns = (Vec<String>, Vec<String>, Vec<Option<String>>);

/// Returns the columns of these locks.
pub(crate) fn columns<'a>(node: NodeId, held: impl Iterator<Item = &'a LockToken>) -> Columns {
    let mut columns = Columns::default();
    for held in held {
        // Each held job has an id of the engine, because it came from the engine's tables.
        if let Some(id) = engine_id(held.id) {
            columns.0.push(id);
            columns.1.push(owner(node, held.fence));
            columns.2.push(held.instance.clone());
        }
    }
    columns
}

/// Returns the columns, limited to these ids.
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

/// Returns the engine's texts of these ids. Leaves out ids that no engine can have.
pub(crate) fn texts(ids: impl IntoIterator<Item = JobId>) -> Vec<String> {
    ids.into_iter().filter_map(engine_id).collect()
}
