//! `jobwire batches`, and bulk operations of `jobwire jobs … --as-job`.

use jobwire_core::store::Change;
use jobwire_core::{BULK_TYPE, Batch, Client, JobState, NewJob};
use jobwire_tests::{eventually, http};
use serde_json::Value;

use super::home::{Base, Home};
use super::{SOON, all, fails, jobwire, start, succeeds};

pub(super) async fn a_batch_is_listed_shown_and_cancelled<S: Base>(home: &Home<S>) {
    let batches = |arguments: &[&str]| jobwire(home, &[&["batches"], arguments].concat());
    let said = succeeds(batches(&["list"])).await;
    assert!(said.contains("no open batches"), "{said}");
    let jobs = (0..3).map(|n| NewJob::of("noop", &n));
    let batch = Batch::named("import\u{1b}[2J")
        .jobs(jobs)
        .then(NewJob::of("noop", &9));
    let client = Client::without_hints(home.store.clone());
    let id = client.create_batch(batch).await.unwrap().to_string();

    let said = succeeds(batches(&["list"])).await;
    assert!(said.contains(&id) && said.contains("open"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
    let said = succeeds(batches(&["list", "--json"]).env("JOBWIRE_LOG", "off")).await;
    let listed: Value = serde_json::from_str(&said).unwrap();
    let one = &listed[0];
    assert_eq!((&one["members"], &one["ended"]), (&3.into(), &0.into()));
    let said = succeeds(batches(&["show", &id])).await;
    assert!(said.contains("executable members  3"), "{said}");
    let said = succeeds(jobwire(home, &["jobs", "count", "--batch", &id])).await;
    assert!(said.contains('3'), "{said}");

    let said = fails(batches(&["cancel", &id]), 2).await;
    assert!(said.contains("3 jobs") && said.contains("--yes"), "{said}");
    let said = succeeds(batches(&["cancel", &id, "--yes"])).await;
    assert!(said.contains("3 jobs deleted"), "{said}");
    assert!(all(&home.store).await.is_empty());
    let said = succeeds(batches(&["list", "--ended"])).await;
    assert!(said.contains("cancelled"), "{said}");
    let none = "00000000-0000-0000-0000-000000000000";
    for action in [&["show", none][..], &["cancel", none, "--yes"]] {
        let said = fails(batches(action), 1).await;
        assert!(said.contains("there is no batch"), "{said}");
    }
}

pub(super) async fn a_batch_whose_job_at_the_end_can_not_be_created_is_named_with_the_reason<
    S: Base,
>(
    home: &Home<S>,
) {
    let store = &home.store;
    let client = Client::without_hints(store.clone());
    let batch = Batch::named("b")
        .job(NewJob::of("noop", &1))
        .then(NewJob::of("noop", &9));
    let id = client.create_batch(batch).await.unwrap().to_string();
    let spoil = r#"UPDATE {s}batch SET callback = '{"type":"noop","retries":"x"}'"#;
    store.execute(spoil).await;
    let said = succeeds(jobwire(home, &["batches", "list"])).await;
    assert!(said.contains(&format!("batch {id} can't end: ")), "{said}");
    let said = succeeds(jobwire(home, &["batches", "show", &id])).await;
    assert!(said.contains("can't be created: "), "{said}");
}

pub(super) async fn open_batches_and_their_ends_are_counted<S: Base>(home: &Home<S>) {
    let client = Client::without_hints(home.store.clone());
    let of = |job_type: &str| Batch::named(job_type).job(NewJob::of(job_type, &()));
    client.create_batch(of("unserved")).await.unwrap();
    client.create_batch(of("noop")).await.unwrap();
    let run = jobwire(home, &["run", "--http", "127.0.0.1:0"]);
    let (_node, address) = start(run.env("JOBWIRE_SWEEP_INTERVAL", "1s")).await;
    let counted = [
        "\njobwire_open_batches 1\n",
        "\njobwire_batches_ended_total{outcome=\"done\"} 1\n",
    ];
    eventually("both numbers", SOON, async || {
        let metrics = http::get(&address, "/metrics").await.ok()?.body;
        counted
            .iter()
            .all(|line| metrics.contains(line))
            .then_some(())
    })
    .await;
}

pub(super) async fn a_bulk_operation_is_left_to_a_node<S: Base>(home: &Home<S>) {
    let database = &home.store;
    let client = Client::without_hints(database.clone());
    let jobs = (0..3).map(|n| NewJob::of("noop", &n)).collect();
    let ids = client.create_many(jobs).await.unwrap();
    let bury = Change::MakeDeadLetter("no luck".to_owned());
    client.change(&ids, &bury).await.unwrap();
    let line = ["jobs", "retry", "--all", "--type", "noop", "--as-job"];
    let said = succeeds(jobwire(home, &line)).await;
    let job = all(database).await;
    let job = job.iter().find(|job| job.job_type == BULK_TYPE).unwrap();
    assert!(said.contains(&job.id.to_string()), "{said}");
    let dead = all(database).await;
    let dead = dead.iter().filter(|job| job.state == JobState::DeadLetter);
    assert_eq!(dead.count(), 3, "nothing is done yet");
    let (_node, _) = start(jobwire(home, &["run", "--http", "127.0.0.1:0"])).await;
    eventually("all jobs to be done", SOON, async || {
        all(database).await.is_empty().then_some(())
    })
    .await;
    let said = fails(jobwire(home, &["jobs", "delete", "--all", "--as-job"]), 2).await;
    assert!(said.contains("--yes"), "{said}");
}
