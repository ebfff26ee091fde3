//! Logs one line when the database stops answering, and one when it answers again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::store::error::StoreError;

/// Whether the last statement reached the database. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Presence(Arc<Mutex<Option<Instant>>>);

impl Presence {
    /// Records the result of a statement.
    pub(super) fn note<T>(&self, answer: &Result<T, StoreError>) {
        match answer {
            Ok(_) => {
                if let Some(since) = self.gone().take() {
                    let seconds = since.elapsed().as_millis() as f64 / 1e3;
                    tracing::info!(seconds, "the database answers again");
                }
            }
            Err(error) if error.is_absence() => {
                let mut gone = self.gone();
                if gone.is_none() {
                    *gone = Some(Instant::now());
                    tracing::warn!(%error, "the database does not answer; statements are retried until it does");
                }
            }
            Err(_) => {}
        }
    }

    fn gone(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_goes_with_a_lost_answer_and_comes_with_the_next_one() {
        let presence = Presence::default();
        let lost = || {
            let reset = std::io::ErrorKind::ConnectionReset.into();
            Err::<(), _>(StoreError::Database(sqlx::Error::Io(reset)))
        };
        presence.note(&Err::<(), _>(StoreError::Timeout(Duration::from_secs(1))));
        presence.note(&Err::<(), _>(StoreError::Config(
            "a right is missing".to_owned(),
        )));
        assert!(presence.gone().is_none());
        presence.note(&lost());
        let since = *presence.gone();
        assert!(since.is_some());
        presence.note(&lost());
        assert_eq!(*presence.gone(), since);
        presence.note(&Ok(()));
        assert!(presence.gone().is_none());
    }
}
