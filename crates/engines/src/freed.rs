//! The jobs and instances whose expired locks were cleared.

use jobwire_core::hint::Ready;
use jobwire_core::{NodeId, StoreError};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::decode::Decoder;
use crate::owner;

/// A job whose expired lock was cleared.
#[derive(Debug)]
pub(crate) struct Freed {
    pub(crate) ready: Ready,
    pub(crate) job_type: String,
    /// The node that held it; `None` for a node of the engine.
    pub(crate) owner: Option<NodeId>,
}

impl Freed {
    /// Reads a row with the columns of a hint and the former `lock_owner_`. `None` if its id can't be
    /// read.
    pub(crate) fn of(decoder: &Decoder, row: &PgRow) -> Result<Option<Self>, StoreError> {
        let Some(ready) = decoder.ready_row(row)? else {
            return Ok(None);
        };
        let handler: Option<String> = row.try_get("handler_type_")?;
        let holder: Option<String> = row.try_get("lock_owner_")?;
        Ok(Some(Self {
            ready,
            job_type: decoder.type_of(handler.as_deref()).to_owned(),
            owner: holder.as_deref().and_then(owner::parse).map(|of| of.0),
        }))
    }
}

/// Instances whose expired locks were cleared.
#[derive(Debug, Default)]
pub(crate) struct FreedInstances {
    /// The number of instances.
    pub(crate) count: u64,
    /// The jobs that waited for them. An instance for which only timers wait has none.
    pub(crate) ready: Vec<Ready>,
}
