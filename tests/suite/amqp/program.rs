//! The program over TLS: jobs run, a mistake is one clear line, and no log shows a secret.

use std::time::Duration;

use jobwire_core::{JobQuery, PgStore, Store};
use jobwire_tests::{Authority, Identity, Program, Scratch, Signal, eventually, shared};

use super::secured::Secured;
use super::vhost::SOON;

/// A directory with the settings that the program finds.
struct Home {
    directory: Scratch,
    database: String,
}

impl Home {
    async fn new(broker: &str, authority: &Authority, client: Option<&Identity>) -> Self {
        let directory = Scratch::new();
        let database = shared::postgres().await.create_database().await;
        let ca = authority.certificate().display();
        let mut settings = format!(
            "database_url = \"{database}\"\nbroker_url = \"{broker}\"\nbroker_tls_ca = \"{ca}\"\n\
             broker_statistics_interval = \"200ms\"\nhttp = \"off\"\nlog = \"debug\"\n"
        );
        if let Some(client) = client {
            settings.push_str(&format!(
                "broker_tls_certificate = \"{}\"\nbroker_tls_key = \"{}\"\n",
                client.certificate.display(),
                client.key.display()
            ));
        }
        let _ = directory.write("jobwire.toml", settings);
        Self {
            directory,
            database,
        }
    }

    fn jobwire(&self, arguments: &[&str]) -> Program {
        Program::jobwire()
            .in_directory(self.directory.path())
            .args(arguments)
    }

    async fn succeeds(&self, arguments: &[&str]) -> String {
        let (status, lines) = self.jobwire(arguments).run(SOON).await;
        let said = lines.join("\n");
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// Runs `doctor` until its output is right, and returns the output. The doctor gives the broker
    /// only a few seconds to answer, so on a busy machine it runs again.
    async fn doctor(
        &self,
        arguments: &[&str],
        right: impl Fn(&str, Option<i32>) -> bool,
    ) -> String {
        let arguments = [&["doctor"], arguments].concat();
        eventually("the expected report of the doctor", SOON, || async {
            let (status, lines) = self.jobwire(&arguments).run(SOON).await;
            let said = lines.join("\n");
            let right = right(&said, status.code());
            if !right {
                println!("{status}: {said}");
            }
            right.then_some(said)
        })
        .await
    }

    async fn finds_nothing_wrong(&self) -> String {
        self.doctor(&[], |_, code| code == Some(0)).await
    }

    async fn fails(&self, arguments: &[&str], code: i32) -> String {
        let (status, lines) = self.jobwire(arguments).run(SOON).await;
        let said = lines.join("\n");
        assert_eq!(status.code(), Some(code), "{said}");
        said
    }
}

/// The part of a key that a log would show.
fn secret_of(identity: &Identity) -> String {
    let key = std::fs::read_to_string(&identity.key).unwrap();
    key.lines().nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn jobs_run_where_the_certificate_is_the_log_in() {
    let broker = Secured::shared().await;
    let (client, url) = broker.certified().await;
    let home = Home::new(&url, &broker.authority, Some(&client)).await;
    let mut logs = home.succeeds(&["migrate", "up"]).await;
    logs += &home.finds_nothing_wrong().await;
    let mut node = home.jobwire(&["run"]).start();
    node.wait_for_line("is ready", SOON).await;
    let file = home
        .directory
        .write("jobs.jsonl", "{\"type\":\"noop\"}\n".repeat(200));
    logs += &home
        .succeeds(&["enqueue", &file.display().to_string()])
        .await;
    let store = PgStore::connect(&home.database).await.unwrap();
    eventually("every job to be done", Duration::from_secs(60), || async {
        (store.count(&JobQuery::default()).await.ok()? == 0).then_some(())
    })
    .await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(SOON).await.success());
    logs += &node.lines().all().join("\n");
    assert!(logs.contains("connected to the broker"), "{logs}");
    for secret in [secret_of(&client).as_str(), "PRIVATE KEY"] {
        assert!(!logs.contains(secret), "{logs}");
    }
}

#[tokio::test]
async fn jobs_run_with_a_password_over_tls_that_no_log_shows() {
    let broker = Secured::shared().await;
    let url = broker.url("localhost").await;
    let parsed = url::Url::parse(&url).unwrap();
    let secret = parsed.password().unwrap();
    let home = Home::new(&url, &broker.authority, None).await;
    let mut logs = home.succeeds(&["migrate", "up"]).await;
    logs += &home.succeeds(&["config"]).await;
    logs += &home.finds_nothing_wrong().await;
    let mut node = home.jobwire(&["run"]).start();
    node.wait_for_line("is ready", SOON).await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(SOON).await.success());
    logs += &node.lines().all().join("\n");
    assert!(logs.contains("amqps://"), "{logs}");
    assert!(!logs.contains(secret), "{logs}");
}

#[tokio::test]
async fn a_broker_that_can_not_be_trusted_is_one_clear_line() {
    let broker = Secured::shared().await;
    let url = broker.url("localhost").await;
    let parsed = url::Url::parse(&url).unwrap();
    let secret = parsed.password().unwrap();
    let home = Home::new(&url, &Authority::new(), None).await;
    home.succeeds(&["migrate", "up"]).await;
    // The CA file was deleted with its authority: the first error is about the file.
    for command in ["run", "doctor"] {
        let said = home.fails(&[command], 1).await;
        assert!(
            said.contains("broker_tls_ca") && said.contains("can't be read"),
            "{said}"
        );
        assert!(!said.contains(secret), "{said}");
    }
    let stranger = Authority::new();
    let ca = stranger.certificate().display().to_string();
    let reason = [
        "broker_tls_ca",
        "no authority that is trusted",
        "trust store",
    ];
    let says = |said: &str| {
        for part in reason {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!said.contains(secret), "{said}");
    };
    let distrusts = |said: &str, code| said.contains(reason[1]) && code == Some(1);
    says(&home.doctor(&["--broker-tls-ca", &ca], distrusts).await);
    // The start does not wait long for a slow handshake, so the line may come later.
    let mut node = home.jobwire(&["run", "--broker-tls-ca", &ca]).start();
    says(
        &node
            .wait_for_line("no authority that is trusted", SOON)
            .await,
    );
    node.signal(Signal::SIGTERM);
    node.exit(SOON).await;
}

#[tokio::test]
async fn a_broker_elsewhere_without_tls_is_refused_before_anything_is_sent() {
    let home = Scratch::new();
    let run = |extra: &[&str]| {
        let mut arguments = vec![
            "run",
            "--http",
            "off",
            "--database",
            "sqlite:jobs.db",
            "--broker",
        ];
        arguments.push("amqp://bob:hunter2@mq.example.org/jobs");
        arguments.extend_from_slice(extra);
        let program = Program::jobwire().in_directory(home.path());
        program.args(arguments)
    };
    let (status, lines) = run(&[]).run(SOON).await;
    let said = lines.join("\n");
    assert_eq!(status.code(), Some(2), "{said}");
    for part in ["mq.example.org", "amqps://", "broker_plaintext", "`allow`"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("hunter2"), "{said}");

    let mut allowed = run(&["--broker-plaintext", "allow"]).start();
    let line = allowed.wait_for_line("not encrypted", SOON).await;
    assert!(!line.contains("hunter2"), "{line}");
    allowed.signal(Signal::SIGTERM);
    allowed.exit(SOON).await;
}
