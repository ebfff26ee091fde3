//! Tracks whether the database answers. Logs one line when it stops and one when it answers again,
//! and finds the cause of its absence for health endpoints.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::store::error::StoreError;

/// The time within which a health endpoint is answered, and for which its answer is reused.
const ANSWER_WITHIN: Duration = Duration::from_millis(1_500);
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
const LASTS: Duration = Duration::from_secs(1);

/// The address at which the database listens.
#[derive(Clone, Debug)]
pub enum Address {
    /// A host and its port.
    Tcp(String, u16),
    /// A socket of this machine.
    Socket(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Socket(path) => f.write_str(path),
        }
    }
}

impl Address {
    /// Returns the reason why the database does not answer.
    async fn cause(&self, error: &StoreError) -> String {
        match self {
            Self::Socket(path) => {
                format!("the database at {path} does not answer: {}", error.bare())
            }
            Self::Tcp(host, port) => {
                let connect = TcpStream::connect((host.as_str(), *port));
                match tokio::time::timeout(CONNECT_WITHIN, connect).await {
                    Ok(Err(refusal)) => {
                        format!("cannot connect to the database at {host}:{port}: {refusal}")
                    }
                    Err(_) => format!("the database at {host}:{port} cannot be reached"),
                    Ok(Ok(_)) if error.is_absence() || matches!(error, StoreError::Timeout(_)) => {
                        format!(
                            "the database at {host}:{port} accepts connections but does not answer"
                        )
                    }
                    Ok(Ok(_)) => format!("the database at {host}:{port} reports: {}", error.bare()),
                }
            }
        }
    }
}

/// Whether the last statement reached the database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Presence {
    address: Arc<Address>,
    gone: Arc<Mutex<Option<Instant>>>,
    /// The last answer to a health endpoint. Endpoints that ask at the same time share one
    /// question.
    asked: Arc<tokio::sync::Mutex<Option<Asked>>>,
}

/// An answer to a health endpoint: its time, and why the database is absent.
type Asked = (Instant, Option<String>);

impl Presence {
    pub fn of(address: Address) -> Self {
        Self {
            address: Arc::new(address),
            gone: Arc::default(),
            asked: Arc::default(),
        }
    }

    /// Returns the address of the database.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Records the result of a statement.
    pub fn note<T>(&self, answer: &Result<T, StoreError>) {
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
                    self.log(error.bare());
                }
            }
            Err(_) => {}
        }
    }

    /// Logs the absence with its cause, which takes a moment to find.
    fn log(&self, error: String) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let address = self.address.clone();
        runtime.spawn(async move {
            let cause = address.cause(&StoreError::Timeout(CONNECT_WITHIN)).await;
            tracing::warn!(
                cause,
                error,
                "the database does not answer; statements are retried until it does"
            );
        });
    }

    /// Returns the reason why the database does not answer, or `None` if it answers. Calls
    /// `question` unless the last answer is recent.
    pub async fn absence(
        &self,
        question: impl Future<Output = Result<(), StoreError>>,
    ) -> Option<String> {
        let mut asked = self.asked.lock().await;
        if let Some((at, answer)) = &*asked
            && at.elapsed() < LASTS
        {
            return answer.clone();
        }
        let answer = tokio::time::timeout(ANSWER_WITHIN, question).await;
        let answer = answer.unwrap_or(Err(StoreError::Timeout(ANSWER_WITHIN)));
        let answer = match answer {
            Ok(()) => None,
            Err(error) => Some(self.address.cause(&error).await),
        };
        *asked = Some((Instant::now(), answer.clone()));
        answer
    }

    fn gone(&self) -> MutexGuard<'_, Option<Instant>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_goes_with_a_lost_answer_and_comes_with_the_next_one() {
        let presence = Presence::of(Address::Socket("here".to_owned()));
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
