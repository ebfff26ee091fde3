use std::sync::atomic::AtomicUsize;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::meter::Meter;
use crate::options::EngineOptions;
use crate::owner::owner;
use crate::routing::Routes;

const HELD: ListRequest = ListRequest {
    path: "/jobs/execute",
    query: "?instance=held",
    lease: None,
};
const HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n";

/// Serves an engine that answers one request after the other, as the function writes it. Returns its
/// URL.
async fn served<F>(answer: impl Fn(String, TcpStream) -> F + Send + 'static) -> String
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
    url
}

async fn engine<F>(answer: impl Fn(String, TcpStream) -> F + Send + 'static) -> Arc<Rest>
where
    F: Future<Output = ()> + Send,
{
    let url = served(answer).await;
    Arc::new(Rest::new(&EngineOptions::new(&*url), &url).expect("usable"))
}

/// Runs jobs of one node, whose fences are their numbers.
async fn run(lists: &Arc<Lists>, rest: &Arc<Rest>, jobs: i64) -> Vec<Option<Said>> {
    let node = NodeId::generate();
    let runs = (1..=jobs).map(|job| async move {
        let (id, owner) = (job.to_string(), owner(node, Fence::new(job)));
        lists.run(rest, HELD, (&id, &owner), 8).await
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
        assert!(
            request.starts_with("POST /jobs/execute?instance=held "),
            "{request}"
        );
        assert!(
            request.contains(r#""at_once":8,"within":1000,"jobs""#),
            "{request}"
        );
        assert!(request.contains(r#"{"id":"2","fence":2}"#), "{request}");
        // In the order of their ends, and cut anywhere.
        let lines = "{\"job\":\"3\",\"status\":200,\"state\":\"gone\"}\n{\"job\":\"1\",\"sta";
        stream
            .write_all(format!("{HEAD}{lines}").as_bytes())
            .await
            .expect("sent");
        tokio::time::sleep(Duration::from_millis(5)).await;
        let rest =
            "tus\":404,\"message\":\"none\"}\n{\"job\":\"2\",\"status\":200,\"state\":\"job\"}\n";
        stream.write_all(rest.as_bytes()).await.expect("sent");
    })
    .await;
    let said = answers(run(&Arc::default(), &rest, 3).await);
    let missing = Answer::Missing("none".to_owned());
    let expected = [missing, Answer::GivenBack, Answer::Executed];
    assert_eq!(said, expected.map(Some));
}

#[tokio::test]
async fn a_list_names_the_lease_by_which_the_engine_extends_its_locks() {
    let rest = engine(|request, mut stream| async move {
        assert!(request.starts_with("POST /v1/run-list "), "{request}");
        assert!(request.contains(r#","lease":15000,"#), "{request}");
        let line = r#"{"job":"7","status":200,"state":"gone"}"#;
        let sent = format!("{HEAD}{line}\n");
        stream.write_all(sent.as_bytes()).await.expect("sent");
    })
    .await;
    let run_list = ListRequest {
        path: "/v1/run-list",
        query: "",
        lease: Some(Duration::from_secs(15)),
    };
    let owner = owner(NodeId::generate(), Fence::new(1));
    let lists = Arc::<Lists>::default();
    let said = lists.run(&rest, run_list, ("7", &owner), 2).await;
    assert_eq!(said.map(|said| said.answer), Some(Answer::Executed));
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
            lists.run(&rest, HELD, (&id, &owner), 2).await
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

/// The breaker opens after three failures in a row.
#[tokio::test]
async fn a_list_that_fails_is_one_failure_of_its_address() {
    let line = r#"{"job":"0","status":200,"state":"gone"}"#;
    let cut = format!("{HEAD}{line}\n");
    let refused = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let failed = "HTTP/1.1 500 Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    for answer in ["", refused, failed, &cut] {
        let written = answer.to_owned();
        let url = served(move |_, mut stream| {
            let written = written.clone();
            async move {
                stream.write_all(written.as_bytes()).await.expect("sent");
            }
        })
        .await;
        let (options, meter) = (EngineOptions::new(&*url), Meter::new("test"));
        let routes = Routes::new(&options, None, String::new(), &meter).expect("usable");
        let [route] = routes.all() else {
            panic!("one address");
        };
        for lists in 1..=3 {
            let said = run(route.lists(), route.rest(), 5).await;
            assert_eq!(said.len(), 5);
            for said in said.into_iter().flatten() {
                assert!(said.answer.is_unanswered(), "{said:?}");
                route.at_fault(&said.fault, "the list failed");
            }
            let is_open = routes.problem().is_some();
            assert_eq!(is_open, lists == 3, "after {lists} lists: {answer}");
        }
    }
}

#[tokio::test]
async fn an_address_that_refuses_a_list_has_run_nothing_and_gets_single_requests() {
    for status in [401, 403, 404, 405, 413] {
        let rest = engine(move |_, mut stream| async move {
            let none =
                format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(none.as_bytes()).await.expect("sent");
        })
        .await;
        let lists = Arc::<Lists>::default();
        lists.know(true);
        let said = run(&lists, &rest, 2).await;
        assert!(said.iter().all(Option::is_none), "{status}: {said:?}");
        assert!(!lists.are_taken(), "{status}");
        // The address still reports that it takes them.
        lists.know(true);
        assert_eq!(lists.are_taken(), matches!(status, 404 | 405), "{status}");
    }
}

/// The answers to the jobs come before the end of the answer to the list.
#[tokio::test]
async fn the_connection_of_a_list_is_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let connections = Arc::new(AtomicUsize::new(0));
    let seen = connections.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            seen.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut part = [0; 1_024];
                while let Ok(read @ 1..) = stream.read(&mut part).await {
                    request.extend_from_slice(&part[..read]);
                    if !request.ends_with(b"]}") {
                        continue;
                    }
                    request.clear();
                    let line = "{\"job\":\"1\",\"status\":200,\"state\":\"gone\"}\n";
                    let chunk = format!(
                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n",
                        line.len()
                    );
                    stream.write_all(chunk.as_bytes()).await.expect("sent");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    if stream.write_all(b"0\r\n\r\n").await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let rest = Rest::new(&EngineOptions::new(&*url), &url).expect("usable");
    for _ in 0..5 {
        let (said, answered) = oneshot::channel();
        let job = Listed {
            id: "1".to_owned(),
            node: NodeId::generate(),
            fence: Fence::new(1),
            at_once: 1,
            request: HELD,
            said,
        };
        send(&Lists::default(), &rest, vec![job]).await;
        let said = answered.await.expect("a list").expect("an answer");
        assert_eq!(said.answer, Answer::Executed);
    }
    let connections = connections.load(Ordering::Relaxed);
    assert!(connections < 5, "{connections} connections for 5 lists");
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
