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
use std::time::Duration;

use jobwire_core::{Fence, NodeId};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::http::{Answer, Rest};
use crate::owner::parse;
use crate::pace::GIVE_BACK;

/// The path below the engine's URL.
const PATH: &str = "/jobs/execute";
/// Maximum number of jobs of one request.
const MOST: usize = 200;
/// The time in which the jobs of a group gather.
const GATHER: Duration = Duration::from_millis(1);

/// An answer about a job.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) answer: Answer,
    /// The duration of the execution, if the engine told it.
    pub(crate) took: Option<Duration>,
}

impl From<Answer> for Said {
    fn from(answer: Answer) -> Self {
        Self { answer, took: None }
    }
}

/// The jobs for an address that gather. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Lists {
    gathering: Mutex<Vec<Listed>>,
    /// Whether the address takes lists.
    is_known: AtomicBool,
}

/// A job of a list.
#[derive(Debug)]
struct Listed {
    id: String,
    node: NodeId,
    fence: Fence,
    at_once: usize,
    /// The query of the request.
    query: &'static str,
    said: oneshot::Sender<Option<Said>>,
}

#[derive(Serialize)]
struct Request<'a> {
    node: String,
    at_once: usize,
    within: u128,
    jobs: Vec<Locked<'a>>,
}

#[derive(Serialize)]
struct Locked<'a> {
    id: &'a str,
    fence: i64,
}

impl Lists {
    /// Records whether the address takes lists.
    pub(crate) fn know(&self, takes_lists: bool) {
        self.is_known.store(takes_lists, Ordering::Relaxed);
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
    /// `None` if nothing was run, because there is no path for lists at the address.
    pub(crate) async fn run(
        self: &Arc<Self>,
        rest: &Arc<Rest>,
        query: &'static str,
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
                query,
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
                && first.is_some_and(|it| it.node == job.node && it.query == job.query)
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
    let path = format!("{PATH}{}", first.query);
    let request = Request {
        node: first.node.to_string(),
        at_once: list.iter().map(|job| job.at_once).min().unwrap_or(1),
        within: GIVE_BACK.as_millis(),
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
        Ok(mut lines) => loop {
            if open.is_empty() {
                break None;
            }
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
            // An older artefact stands there now. Its next report tells it, too.
            lists.know(false);
            None
        }
        Err(answer) => Some(answer),
    };
    for waiting in open.into_values() {
        let _ = waiting.send(others.clone().map(Said::from));
    }
}

/// Reads a line: the id of the job, and what the engine says about it.
fn read(line: &[u8]) -> (Option<String>, Said) {
    let said: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
    let job = said["job"].as_str().map(str::to_owned);
    let took = said["micros"].as_u64().map(Duration::from_micros);
    let answer = Answer::of_line(&said);
    (job, Said { answer, took })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::options::EngineOptions;
    use crate::owner::owner;

    const HEAD: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n";

    /// An engine that answers one request after the other, as the function writes it.
    async fn engine<F>(answer: impl Fn(String, TcpStream) -> F + Send + 'static) -> Arc<Rest>
    where
        F: Future<Output = ()> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"]}") {
                    let mut part = [0; 1_024];
                    let read = stream.read(&mut part).await.expect("a request");
                    assert!(read > 0, "the request is whole");
                    request.extend_from_slice(&part[..read]);
                }
                answer(String::from_utf8_lossy(&request).into_owned(), stream).await;
            }
        });
        Arc::new(Rest::new(&EngineOptions::new(&*url), &url).expect("usable"))
    }

    /// Runs jobs of one node, whose fences are their numbers.
    async fn run(lists: &Arc<Lists>, rest: &Arc<Rest>, jobs: i64) -> Vec<Option<Said>> {
        let node = NodeId::generate();
        let runs = (1..=jobs).map(|job| async move {
            let (id, owner) = (job.to_string(), owner(node, Fence::new(job)));
            lists.run(rest, "?instance=held", (&id, &owner), 8).await
        });
        futures_util::future::join_all(runs).await
    }

    fn answers(said: Vec<Option<Said>>) -> Vec<Option<Answer>> {
        said.into_iter()
            .map(|said| said.map(|said| said.answer))
            .collect()
    }

    #[tokio::test]
    async fn one_request_runs_the_jobs_that_come_together() {
        let rest = engine(|request, mut stream| async move {
            assert!(request.starts_with("POST /jobs/execute?instance=held "), "{request}");
            assert!(request.contains(r#""at_once":8,"within":1000"#), "{request}");
            assert!(request.contains(r#"{"id":"2","fence":2}"#), "{request}");
            // In the order of their ends, and cut anywhere.
            let lines = "{\"job\":\"3\",\"status\":200,\"state\":\"gone\"}\n{\"job\":\"1\",\"sta";
            stream.write_all(format!("{HEAD}{lines}").as_bytes()).await.expect("sent");
            tokio::time::sleep(Duration::from_millis(5)).await;
            let rest = "tus\":404,\"message\":\"none\"}\n{\"job\":\"2\",\"status\":200,\"state\":\"job\"}\n";
            stream.write_all(rest.as_bytes()).await.expect("sent");
        })
        .await;
        let said = answers(run(&Arc::default(), &rest, 3).await);
        let missing = Answer::Missing("none".to_owned());
        let expected = [missing, Answer::GivenBack, Answer::Executed];
        assert_eq!(said, expected.map(Some));
    }

    #[tokio::test]
    async fn a_slow_job_delays_no_other_answer() {
        let (end, ended) = tokio::sync::watch::channel(false);
        let rest = engine(move |_, mut stream| {
            let mut ended = ended.clone();
            async move {
                let quick = r#"{"job":"2","status":200,"state":"gone"}"#;
                let sent = format!("{HEAD}{quick}\n");
                stream.write_all(sent.as_bytes()).await.expect("sent");
                ended.wait_for(|end| *end).await.expect("the test goes on");
                let slow = r#"{"job":"1","status":200,"state":"gone"}"#;
                stream
                    .write_all(format!("{slow}\n").as_bytes())
                    .await
                    .expect("sent");
            }
        })
        .await;
        let (lists, node) = (Arc::<Lists>::default(), NodeId::generate());
        let run = |job: i64| {
            let (lists, rest) = (lists.clone(), rest.clone());
            tokio::spawn(async move {
                let (id, owner) = (job.to_string(), owner(node, Fence::new(job)));
                lists.run(&rest, "", (&id, &owner), 2).await
            })
        };
        let (slow, quick) = (run(1), run(2));
        let quick = quick.await.expect("no panic").expect("a list");
        assert_eq!(quick.answer, Answer::Executed);
        assert!(!slow.is_finished());
        end.send_replace(true);
        let slow = slow.await.expect("no panic").expect("a list");
        assert_eq!(slow.answer, Answer::Executed);
    }

    #[tokio::test]
    async fn a_list_that_breaks_leaves_the_other_jobs_unanswered() {
        let rest = engine(|_, mut stream| async move {
            let line = r#"{"job":"2","status":200,"state":"gone"}"#;
            let sent = format!("{HEAD}{line}\n");
            stream.write_all(sent.as_bytes()).await.expect("sent");
        })
        .await;
        let said = answers(run(&Arc::default(), &rest, 2).await);
        assert!(matches!(said[0], Some(Answer::Unanswered(_))), "{said:?}");
        assert_eq!(said[1], Some(Answer::Executed));
    }

    #[tokio::test]
    async fn without_a_path_for_lists_nothing_is_run() {
        let rest = engine(|_, mut stream| async move {
            let none = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(none.as_bytes()).await.expect("sent");
        })
        .await;
        let lists = Arc::<Lists>::default();
        lists.know(true);
        let said = run(&lists, &rest, 2).await;
        assert!(said.iter().all(Option::is_none), "{said:?}");
        assert!(!lists.are_taken());
    }

    #[test]
    fn a_line_names_its_job_and_its_end() {
        let (job, said) = read(br#"{"job":"7","status":200,"state":"gone","micros":1500}"#);
        assert_eq!(job.as_deref(), Some("7"));
        assert_eq!(said.answer, Answer::Executed);
        assert_eq!(said.took, Some(Duration::from_micros(1_500)));
        let answer = |line: &str| read(line.as_bytes()).1.answer;
        let not_begun = answer(r#"{"job":"7","status":200,"state":"not begun"}"#);
        assert_eq!(not_begun, Answer::NotBegun);
        let gone = answer(r#"{"job":"7","status":404,"message":"none"}"#);
        assert_eq!(gone, Answer::Missing("none".to_owned()));
        let failed = answer(r#"{"job":"7","status":500,"message":"no database"}"#);
        assert_eq!(failed, Answer::Refused("no database".to_owned()));
        let retried = answer(r#"{"job":"7","status":200,"state":"timer","message":"no route"}"#);
        assert_eq!(retried, Answer::Refused("no route".to_owned()));
        assert!(matches!(answer(r#"{"job":"7"}"#), Answer::Unusable(_)));
        assert_eq!(read(b"<html>").0, None);
    }
}
