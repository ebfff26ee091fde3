//! Arguments that a bench refuses before it contacts a server.

use jobwire_tests::Scratch;

use super::super::{fails, jobwire};

/// Asserts that these arguments are refused with a message that contains these words.
async fn refused(arguments: &[&str], words: &[&str]) {
    let home = Scratch::new();
    let said = fails(jobwire(&home, &["bench"]).args(arguments), 2).await;
    for word in words {
        assert!(said.contains(word), "{word} in {arguments:?}: {said}");
    }
    assert!(!home.join("jobwire.db").exists(), "{arguments:?}");
}

#[tokio::test]
async fn several_nodes_need_a_server_and_a_broker() {
    let server = ["--database", "postgres://nobody@127.0.0.1:1/none"];
    for workload in ["drain", "timers", "exclusive", "backlog", "fleet", "idle"] {
        let sqlite = [workload, "--nodes", "3"];
        refused(&sqlite, &["--nodes 3: SQLite", "--database postgres://"]).await;
        let alone = [workload, "--nodes", "3", server[0], server[1]];
        refused(&alone, &["--nodes 3: several nodes", "--broker amqps://"]).await;
    }
    refused(&["idle"], &["--nodes 8", "--database"]).await;
    refused(&["fleet"], &["--nodes 2", "--database"]).await;
}

#[tokio::test]
async fn jobs_that_arrive_need_a_broker() {
    for workload in ["steady", "burst", "continuous"] {
        refused(&[workload], &["give --broker amqps://"]).await;
    }
    let fleet = ["fleet", "--nodes", "1", "--load", "continuous"];
    refused(&fleet, &["give --broker amqps://"]).await;
}

#[tokio::test]
async fn what_is_too_much_or_nothing_names_its_option() {
    let much = ["steady", "--rate", "100000", "--seconds", "3600"];
    refused(&much, &["--rate 100000", "--seconds 3600", "lower one"]).await;
    let much = ["exclusive", "--instances", "1000000", "--jobs", "1000000"];
    refused(&much, &["--instances 1000000", "give fewer"]).await;
    for (wrong, option) in [
        (["backlog", "--waiting", "10,0"], "--waiting"),
        (["backlog", "--waiting", "10,x"], "--waiting"),
        (["fleet", "--nodes", "1,65"], "--nodes"),
        (["burst", "--clients", "0"], "--clients"),
        (
            ["continuous", "--per-transaction", "0"],
            "--per-transaction",
        ),
        (["timers", "--spread", "x"], "--spread"),
        (["idle", "--seconds", "0"], "--seconds"),
    ] {
        refused(&wrong, &[option]).await;
    }
}
