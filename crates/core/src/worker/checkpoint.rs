//! Checkpoints: what a handler has saved for the next attempt of its job.

use std::sync::Arc;
#[cfg(any(test, feature = "testing"))]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::progress::MAX_CHECKPOINT_BYTES;
use crate::job::sealed::{Encryption, SealError, opened_text};
use crate::job::{Job, LockToken, NodeId};
use crate::store::{Store, StoreError};
use crate::worker::lease_book::Lease;
use crate::worker::outcome::place_of;

/// The pause between two looks whether a job that is held by its row has got its lease.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The reason why a checkpoint could not be saved or read. With `?` it is an error of the handler.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The checkpoint has more than [`MAX_CHECKPOINT_BYTES`] bytes of JSON.
    #[error(
        "the checkpoint has {bytes} bytes of JSON, more than {MAX_CHECKPOINT_BYTES}; store the data \
         apart and put its key into the checkpoint"
    )]
    TooLarge {
        /// The size in bytes.
        bytes: usize,
    },
    /// The value is no JSON, or the checkpoint of an earlier attempt is none of the type that reads
    /// it.
    #[error("the checkpoint does not match its type: {0}")]
    Json(#[from] serde_json::Error),
    /// The handler works in the completing transaction, which is committed with the end of the job or
    /// not at all.
    #[error(
        "a handler in the completing transaction has no checkpoint, because nothing of it remains \
         before its end; register the handler without `HandlerOptions::in_transaction`"
    )]
    InTransaction,
    /// The node has lost the lock of the job. Another node may run the job already.
    #[error("the lock of the job is lost, so its checkpoint was not saved")]
    LostLock,
    /// The checkpoint could not be encrypted or decrypted.
    #[error(transparent)]
    Sealed(#[from] SealError),
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The place of the checkpoint of one job.
#[derive(Clone)]
pub(crate) enum Checkpoints {
    /// The database, under the lock of the node.
    OfNode {
        store: Arc<dyn Store>,
        owner: NodeId,
        encryption: Option<Encryption>,
    },
    /// The memory, for tests of handlers.
    #[cfg(any(test, feature = "testing"))]
    InMemory(Arc<Mutex<Option<String>>>),
}

impl Checkpoints {
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn in_memory() -> Self {
        Self::InMemory(Arc::default())
    }

    /// Saves a checkpoint, under the guard of this lock.
    pub(crate) async fn save<T: Serialize + Sync>(
        &self,
        job: &Job,
        held: &LockToken,
        lease: &Lease,
        checkpoint: &T,
    ) -> Result<(), CheckpointError> {
        let mut text = serde_json::to_string(checkpoint)?;
        if let Self::OfNode {
            encryption: Some(encryption),
            ..
        } = self
        {
            text = encryption.seal_checkpoint(job, &text)?;
        }
        if text.len() > MAX_CHECKPOINT_BYTES {
            return Err(CheckpointError::TooLarge { bytes: text.len() });
        }
        lease.signs().give();
        match self {
            Self::OfNode { store, owner, .. } => {
                // A short job may be held by its row for a tenth of a second, without a lease.
                while lease.is_by_row() && !lease.lost.is_given() {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                lease.signs().note_row();
                if !store.save_checkpoint(*owner, held, &text).await? {
                    return Err(CheckpointError::LostLock);
                }
            }
            #[cfg(any(test, feature = "testing"))]
            Self::InMemory(kept) => {
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
            }
        }
        Ok(())
    }

    /// Reads the checkpoint of a job.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        job: &Job,
        lease: &Lease,
    ) -> Result<Option<T>, CheckpointError> {
        let (text, encryption) = match self {
            Self::OfNode {
                store, encryption, ..
            } => (store.checkpoint(job.id).await?, encryption.as_ref()),
            #[cfg(any(test, feature = "testing"))]
            Self::InMemory(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                (kept.clone(), None)
            }
        };
        let Some(text) = text else {
            return Ok(None);
        };
        lease.signs().note_row();
        let plain = opened_text(encryption, job, "checkpoint", &text)?;
        let read = serde_json::from_str(plain.as_ref().unwrap_or(&text));
        Ok(Some(read.map_err(|error| match &plain {
            // The message of the error is stored as plaintext.
            Some(_) => serde::de::Error::custom(place_of(&error)),
            None => error,
        })?))
    }
}
