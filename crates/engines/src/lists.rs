//! Lists: jobs for one address of an engine that one request runs.
//!
//! A job that comes alone has a request of its own. When the [gate](crate::gate) lets a group in,
//! its jobs gather here for a moment, and the first one sends them all. The engine runs as many at
//! once as the node may, and answers each as soon as it ends. So a request, its authentication and
//! its answer are paid once for many short jobs, and a slow job delays no other answer.
//!
//! The task of a list ends with its request, whose duration is bounded. If it fails, the jobs
//! without an answer count as unanswered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jobwire_core::{Fence, NodeId};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::fault::Fault;
use crate::http::{Answer, Rest};
use crate::owner::parse;
use crate::pace::GIVE_BACK;

/// Maximum number of jobs of one request.
const MOST: usize = 200;
/// The time in which the jobs of a group gather.
const GATHER: Duration = Duration::from_millis(1);
/// The time for which a gateway's refusal of a list counts, whatever the address reports.
const REFUSED: Duration = Duration::from_secs(600);

/// An answer about a job.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) answer: Answer,
    /// The duration of the execution, if the engine told it.
    pub(crate) took: Option<Duration>,
    /// The fault of the request, if the answer is one.
    pub(crate) fault: Fault,
}

impl From<Answer> for Said {
    fn from(answer: Answer) -> Self {
        Self {
            answer,
            took: None,
            fault: Fault::default(),
        }
    }
}

/// The request that runs a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListRequest {
    /// The path below the engine's URL.
    pub(crate) path: &'static str,
    /// The query with its question mark, or empty.
    pub(crate) query: &'static str,
    /// The time by which the engine extends the lock of a job while it runs; `None` if the engine
    /// extends none.
    pub(crate) lease: Option<Duration>,
}

/// The jobs for an address that gather. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Lists {
    gathering: Mutex<Vec<Listed>>,
    /// Whether the address takes lists.
    is_known: AtomicBool,
    /// When a gateway refused a list.
    refused_at: Mutex<Option<Instant>>,
}

/// A job of a list.
#[derive(Debug)]
struct Listed {
    id: String,
    node: NodeId,
    fence: Fence,
    at_once: usize,
    request: ListRequest,
    said: oneshot::Sender<Option<Said>>,
}

#[derive(Serialize)]
struct Request<'a> {
    node: String,
    at_once: usize,
    within: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<u128>,
    jobs: Vec<Locked<'a>>,
}

#[derive(Serialize)]
struct Locked<'a> {
    id: &'a str,
    fence: i64,
}

impl Lists {
    /// Records whether the address takes lists, as it reports. What a gateway before it has refused
    /// counts for [`REFUSED`].
    pub(crate) fn know(&self, takes_lists: bool) {
        let refused_at = *self.refused_at();
        let is_refused = refused_at.is_some_and(|at| at.elapsed() < REFUSED);
        self.is_known
            .store(takes_lists && !is_refused, Ordering::Relaxed);
    }

    /// Records that a gateway has refused a list.
    fn refused(&self) {
        *self.refused_at() = Some(Instant::now());
        self.know(false);
    }

    /// A poisoned lock means that a thread panicked between whole operations. The time is right.
    fn refused_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.refused_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the address takes lists.
    pub(crate) fn are_taken(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// A poisoned lock means that a thread panicked between whole operations. The list is right.
    fn gathering(&self) -> MutexGuard<'_, Vec<Listed>> {
        self.gathering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job with others. `at_once` is the number of executions of this node at once. Returns
    /// `None` if nothing was run, because the address takes no such list.
    pub(crate) async fn run(
        self: &Arc<Self>,
        rest: &Arc<Rest>,
        request: ListRequest,
        (id, owner): (&str, &str),
        at_once: usize,
    ) -> Option<Said> {
        let (node, fence) = parse(owner)?;
        let (said, answered) = oneshot::channel();
        let is_first = {
            let mut gathering = self.gathering();
            gathering.push(Listed {
                id: id.to_owned(),
                node,
                fence,
                at_once,
                request,
                said,
            });
            gathering.len() == 1
        };
        if is_first {
            tokio::spawn(send_all(self.clone(), rest.clone()));
        }
        let lost = || Answer::Unanswered("the task of the request has ended".to_owned());
        answered.await.unwrap_or_else(|_| Some(lost().into()))
    }
}

/// Sends the jobs that have gathered, those of each node in requests of their own.
async fn send_all(lists: Arc<Lists>, rest: Arc<Rest>) {
    tokio::time::sleep(GATHER).await;
    let gathered = std::mem::take(&mut *lists.gathering());
    let mut requests: Vec<Vec<Listed>> = Vec::new();
    for job in gathered {
        let of = |list: &&mut Vec<Listed>| {
            let first = list.first();
            list.len() < MOST
                && first.is_some_and(|it| it.node == job.node && it.request == job.request)
        };
        match requests.iter_mut().find(of) {
            Some(list) => list.push(job),
            None => requests.push(vec![job]),
        }
    }
    let sends = requests.into_iter().map(|list| send(&lists, &rest, list));
    futures_util::future::join_all(sends).await;
}

/// Sends a list, and passes each answer on.
async fn send(lists: &Lists, rest: &Rest, list: Vec<Listed>) {
    let Some(first) = list.first() else { return };
    let ListRequest { path, query, lease } = first.request;
    let path = format!("{path}{query}");
    let request = Request {
        node: first.node.to_string(),
        at_once: list.iter().map(|job| job.at_once).min().unwrap_or(1),
        within: GIVE_BACK.as_millis(),
        lease: lease.map(|lease| lease.as_millis()),
        jobs: list
            .iter()
            .map(|job| Locked {
                id: &job.id,
                fence: job.fence.number(),
            })
            .collect(),
    };
    let body = serde_json::to_string(&request).map_err(|e| Answer::Unsent(e.to_string()));
    let mut open: HashMap<String, oneshot::Sender<Option<Said>>> =
        list.into_iter().map(|job| (job.id, job.said)).collect();
    let lines = match body {
        Ok(body) => rest.lines(&path, body).await,
        Err(unsent) => Err(unsent),
    };
    let others: Option<Answer> = match lines {
        // Read to its end, or its connection would be closed. No job waits for that.
        Ok(mut lines) => loop {
            match lines.next().await {
                Ok(Some(line)) => {
                    let (job, said) = read(&line);
                    let waiting = job.and_then(|job| open.remove(&job));
                    if let Some(waiting) = waiting {
                        // A handler that has ended takes no answer.
                        let _ = waiting.send(Some(said));
                    }
                }
                Ok(None) => {
                    break Some(Answer::Unanswered(
                        "the list ended without an answer".to_owned(),
                    ));
                }
                Err(broken) => break Some(Answer::Unanswered(broken)),
            }
        },
        Err(Answer::Missing(_) | Answer::OtherMethod) => {
            // An older artefact stands there now. Each job has a request of its own until the next
            // report of the address.
            lists.know(false);
            None
        }
        Err(Answer::Unusable(_)) => {
            // A gateway refuses this path, or such a long request.
            lists.refused();
            None
        }
        // Jobs of the list may have begun before the error.
        Err(Answer::Refused(said)) => Some(Answer::Unanswered(said)),
        Err(answer) => Some(answer),
    };
    // All of them hear of one fault.
    let fault = Fault::of_list();
    for waiting in open.into_values() {
        let said = others.clone().map(|answer| Said {
            fault: fault.clone(),
            ..answer.into()
        });
        let _ = waiting.send(said);
    }
}

/// Reads a line: the id of the job, and what the engine says about it.
fn read(line: &[u8]) -> (Option<String>, Said) {
    let said: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
    let job = said["job"].as_str().map(str::to_owned);
    let took = said["micros"].as_u64().map(Duration::from_micros);
    let answer = Answer::of_line(&said);
    let said = Said {
        took,
        ..answer.into()
    };
    (job, said)
}

#[cfg(test)]
mod tests;
