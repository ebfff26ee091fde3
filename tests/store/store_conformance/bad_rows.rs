//! Rows that are bad but fit the tables, among good ones, on a running node: the good jobs run, and
//! each bad row has a visible result.

use std::time::Duration;

use jobwire_core::{
    HandlerError, HandlerOptions, InProcessTransport, JobId, JobState, Node, Outcome, RetryPolicy,
    Running,
};
use jobwire_harness::eventually;

use super::world::{SqlBench, World};
use jobwire_harness::world::{Notes, SOON, quick};

const MOST: &str = "1000000000";

/// Starts a node whose jobs note their payload. Those with the payload `"fail"` fail once, and wait
/// by the type's policy.
async fn started<S: SqlBench>(w: &World<S>, notes: &Notes) -> Node {
    let noted = notes.clone();
    let retry = RetryPolicy::Fixed(Duration::from_millis(20));
    let handler = move |job: Running<String>| {
        let noted = noted.clone();
        async move {
            if job.payload == "fail" && job.job.retries > 1 {
                return Err(HandlerError::retry("as it was told to"));
            }
            noted.add(job.payload);
            Ok(Outcome::Done)
        }
    };
    Node::builder(
        w.store.clone(),
        std::sync::Arc::new(InProcessTransport::new()),
    )
    .options(quick())
    .handler_with("work", HandlerOptions::default().retry(retry), handler)
    .start()
    .await
    .unwrap()
}

async fn twenty<S: SqlBench>(w: &World<S>) {
    for _ in 0..20 {
        w.store
            .put("job", &[("payload", "'\"good\"'")])
            .await
            .unwrap();
    }
}

async fn until_noted(notes: &Notes, note: &str, count: usize) {
    eventually(&format!("{count} times {note}"), SOON, async || {
        let found = notes.all().iter().filter(|found| *found == note).count();
        (found >= count).then_some(())
    })
    .await;
}

pub(super) async fn bad_rows_stop_no_good_one<S: SqlBench>(w: &World<S>) {
    let bad: &[&[(&str, &str)]] = &[
        &[("repeat", "'R/PT1.1400000000000001S'")],
        &[
            ("repeat", "'nonsense'"),
            ("exclusive", "true"),
            ("process_instance", "'i'"),
        ],
        &[("retry_policy", "'garbage'"), ("payload", "'\"fail\"'")],
        &[
            ("retry_policy", "'garbage'"),
            ("repeat", "'R2/PT1H'"),
            ("payload", "'\"odd\"'"),
        ],
        &[("repeat", "'R2/PT1H'"), ("payload", r#"'"odd\u0000"'"#)],
        &[
            ("repeat", "'R2/PT1H'"),
            ("retries", "2147483647"),
            ("payload", "'\"odd\"'"),
        ],
        &[
            ("repeat", "'R2/PT1H'"),
            ("retries", "0"),
            ("failures", MOST),
            ("payload", "'\"odd\"'"),
        ],
        &[
            ("failures", MOST),
            ("retries", "2"),
            ("hints", MOST),
            ("revision", MOST),
            ("payload", "'\"fail\"'"),
        ],
        &[
            ("repeat", "'R2/PT1H'"),
            ("lane", "'default'"),
            ("tenant", "'\n\u{1b}[2J'"),
            ("payload", "'\"odd\"'"),
        ],
    ];
    let notes = Notes::default();
    twenty(w).await;
    let mut ids = Vec::new();
    for (n, columns) in bad.iter().enumerate() {
        // Executable jobs and due timers end in the same way.
        let table = if n % 2 == 0 { "job" } else { "timer_job" };
        ids.push(w.store.put(table, columns).await.unwrap());
    }
    let node = started(w, &notes).await;
    until_noted(&notes, "good", 20).await;
    until_noted(&notes, "odd", 4).await;
    until_noted(&notes, "odd\0", 1).await;
    until_noted(&notes, "fail", 2).await;
    for id in &ids[..2] {
        let (letter, message) = dead(w, *id).await;
        assert_eq!(letter, JobState::DeadLetter);
        assert!(
            message.contains("field `repeat`") && message.contains("did not run"),
            "{message}"
        );
    }
    // Later jobs get through too.
    twenty(w).await;
    until_noted(&notes, "good", 40).await;
    let waiting = "SELECT count(*) FROM {s}timer_job WHERE repeat = 'R1/PT3600S'";
    eventually("every series to go on", SOON, async || {
        let left = w.rows("job").await + w.rows("job_lease").await;
        (left == 0 && w.store.number(waiting).await == 5).then_some(())
    })
    .await;
    node.stop().await;
    assert_eq!(w.rows("dead_letter_job").await, 2);
    let most = w
        .store
        .number("SELECT max(CAST(retries AS bigint)) FROM {s}timer_job")
        .await;
    assert_eq!(most, 2_147_483_647);
}

async fn dead<S: SqlBench>(w: &World<S>, id: JobId) -> (JobState, String) {
    eventually("a dead letter", SOON, async || {
        let view = w
            .view(id)
            .await
            .filter(|view| view.state == JobState::DeadLetter)?;
        Some((view.state, view.exception_message?))
    })
    .await
}

/// Three jobs like these once froze a node: their next occurrence was written as a float, which no
/// program could read.
pub(super) async fn a_series_whose_interval_is_no_binary_fraction_goes_on<S: SqlBench>(
    w: &World<S>,
) {
    let notes = Notes::default();
    let series = [("repeat", "'R/PT1.14S'"), ("payload", "'\"again\"'")];
    for _ in 0..3 {
        w.store.put("job", &series).await.unwrap();
    }
    let node = started(w, &notes).await;
    until_noted(&notes, "again", 9).await;
    twenty(w).await;
    until_noted(&notes, "good", 20).await;
    node.stop().await;
    assert_eq!(w.rows("dead_letter_job").await, 0);
    let exact = "SELECT count(*) FROM (SELECT repeat FROM {s}timer_job UNION ALL SELECT repeat FROM {s}job) r WHERE repeat = 'R/PT1.14S'";
    assert_eq!(w.store.number(exact).await, 3);
}
