//! TLS to an engine. The trusted authorities are those of the machine, or of the file in
//! `SSL_CERT_FILE`, so a program of its own runs for each case.

use std::collections::BTreeSet;
use std::path::Path;

use jobwire_tests::{Authority, Program, Running, Scratch, Signal};

use super::application::Application;
use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::{DONE, until_no_lock_is_left};
use crate::engines::rows::JOB;

const TOKEN: &str = "hunter2";

/// Starts a node that trusts this authority, with the endpoint at this URL.
fn start(home: &Scratch, bare: &Bare, url: &str, authority: &Path) -> Running {
    Program::jobwire()
        .in_directory(home.path())
        .env("SSL_CERT_FILE", authority)
        .env("JOBWIRE_ENGINE_DATABASE_URL", &bare.database)
        .env("JOBWIRE_ENGINE_URL", url)
        .env("JOBWIRE_ENGINE_EXECUTE", "endpoint")
        .env("JOBWIRE_ENGINE_TOKEN_FILE", home.write("token", TOKEN))
        .env("JOBWIRE_LEASE", "3s")
        .env("JOBWIRE_SWEEP_INTERVAL", "1s")
        .env("JOBWIRE_HTTP", "127.0.0.1:0")
        .args(["engine", "run"])
        .start()
}

async fn stop(mut node: Running) {
    node.signal(Signal::SIGTERM);
    assert!(node.exit(DONE).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_with_a_certificate_of_a_private_authority_executes_jobs_over_tls() {
    let authority = Authority::new();
    let mut application = Application::with_tls(&authority.server()).await;
    application.require(TOKEN);
    let bare = Bare::of(Engine::Flowable).await;
    let (_, jobs) = bare.instance(5).await;
    let home = Scratch::new();
    let node = start(&home, &bare, &application.url(), authority.certificate());
    let mut connections = BTreeSet::new();
    for id in &jobs {
        let execution = application.execution().await;
        assert_eq!(execution.id, *id);
        connections.insert(execution.connection);
        bare.end(id).await;
        execution.gone();
    }
    // One job of an instance at a time: the connection is free again for the next one.
    assert!(connections.len() < jobs.len(), "no connection was reused");
    until_no_lock_is_left(&bare.rows).await;
    assert_eq!(application.plain(), 0);
    stop(node).await;
    application.assert_no_other();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_not_the_one_of_its_url_gets_no_request() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let trusted = authority.certificate();
    let misnamed = authority.server_for(&["engine.example.org"]);
    for (identity, trusts, parts) in [
        (
            authority.server(),
            stranger.certificate(),
            ["UnknownIssuer", "SSL_CERT_FILE"],
        ),
        (misnamed, trusted, ["another host", "engine_url"]),
        (
            authority.expired_server(),
            trusted,
            ["certificate", "expired"],
        ),
    ] {
        let application = Application::with_tls(&identity).await;
        let said = refused(&application, &application.url(), trusts).await;
        for part in parts {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert_eq!(application.plain(), 0, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_without_tls_at_an_https_url_gets_no_request_in_plain_text() {
    let authority = Authority::new();
    let application = Application::start().await;
    let url = application.url().replace("http://", "https://");
    let said = refused(&application, &url, authority.certificate()).await;
    assert!(said.contains("does not speak TLS"), "{said}");
    assert_eq!(application.plain(), 0, "{said}");
}

/// Runs a node until it can't execute jobs at its address, and returns the log line with the reason.
/// Asserts that the application got no request and that the job is unchanged.
async fn refused(application: &Application, url: &str, authority: &Path) -> String {
    let bare = Bare::of(Engine::Flowable).await;
    let id = bare.job().await;
    let home = Scratch::new();
    let node = start(&home, &bare, url, authority);
    let said = node.wait_for_line("can't execute jobs at this address", DONE);
    let said = said.await;
    stop(node).await;
    let job = bare.find(JOB, &id).await.expect("the job");
    assert_eq!((job.retries, job.is_locked()), (Some(3), false), "{said}");
    assert_eq!(application.requests(), 0, "{said}");
    assert!(!said.contains(TOKEN), "{said}");
    said
}
