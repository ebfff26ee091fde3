//! All faults at once, for a bounded time: see `jobwire_tests::chaos` and docs/internals/chaos.md.
//! The runs are a separate step of `scripts/test`, after all other tests, so that none disturbs
//! another.
//!
//! Budget: 7 minutes on an idle machine of two cores. The seed comes from the time and is printed;
//! `JOBWIRE_TEST_SEED` sets it. The same seed gives the same jobs and faults, but not the same
//! interleaving.

mod bugs;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jobwire_tests::chaos::options::{Broker, Options};
use jobwire_tests::chaos::report::Outcome;
use jobwire_tests::chaos::run;
use jobwire_tests::chaos::workload::Kind;

fn seed() -> u64 {
    if let Ok(seed) = std::env::var("JOBWIRE_TEST_SEED") {
        return seed.parse().expect("JOBWIRE_TEST_SEED is a number");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is right").as_secs()
}

/// There are no faults, but the nodes differ in their settings, one is deployed every five seconds,
/// and jobs and transactions that create jobs take up to a minute. Only a type whose only node is
/// away may need a second hint, and a job whose lease has ended, as on a machine that stalls for
/// seconds. The checker judges the hints of the latter by their pauses.
async fn no_hint_is_lost_in_a_fleet_that_changes(broker: Broker) {
    let outcome = kept(Options {
        time: Duration::from_secs(30),
        broker,
        seed: seed(),
        faults: false,
        ..Options::default()
    })
    .await;
    let counts = &outcome.verdict.counts;
    let extra = counts.rehints - counts.rare_rehints - counts.takeover_rehints;
    assert!(
        extra * 100 < counts.committed,
        "{extra} of {} jobs were hinted again",
        counts.committed
    );
    let rare = outcome.kinds.0.get(Kind::Rare.job_type());
    assert!(rare.is_some_and(|rare| *rare > 0), "no rare jobs");
    assert!(outcome.starts > 5, "few deployments");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a step of its own in scripts/test: cargo test --workspace --test suite chaos:: -- --ignored"]
async fn no_hint_is_lost_in_a_fleet_that_changes_on_rabbitmq() {
    no_hint_is_lost_in_a_fleet_that_changes(Broker::RabbitMq).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a step of its own in scripts/test: cargo test --workspace --test suite chaos:: -- --ignored"]
async fn no_hint_is_lost_in_a_fleet_that_changes_on_kafka() {
    no_hint_is_lost_in_a_fleet_that_changes(Broker::Kafka).await;
}

/// Returns the options of the fleet that `seed` draws: of every two seeds in a row each broker gets
/// both fleets.
///
/// * Few slots: more jobs wait than the fleet can hold, and the limits are judged.
/// * The concurrency, the lock options and the message size of docs/internals/performance.md: the
///   promises must hold with them, too.
fn fleet(broker: Broker, seed: u64) -> Options {
    let few_slots = Options {
        broker,
        seed,
        ..Options::default()
    };
    if seed.is_multiple_of(2) == (broker == Broker::RabbitMq) {
        return few_slots;
    }
    Options {
        concurrency: 2_048,
        durable_locks: false,
        hints_per_message: 64,
        ..few_slots
    }
}

async fn bounded(broker: Broker, time: Duration) {
    let options = Options {
        time,
        ..fleet(broker, seed())
    };
    let outcome = kept(options).await;
    assert!(
        outcome.verdict.counts.completed > 0,
        "nothing was completed"
    );
    assert!(!outcome.faults.is_empty(), "nothing was broken");
}

/// The number of takeovers in the calm from which their 99th percentile is judged.
const ENOUGH_TAKEOVERS: u64 = 100;
/// The bound of a takeover from the end of the lease: a sweep interval of one second, two seconds, and
/// two more for a debug build on two cores, which takes over the two thousand jobs of a node at once.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(5);

/// The number of jobs of a key of [`Kind::Rated`] that may start in a period.
const RATED: u64 = 4;
/// So many jobs of a key of [`Kind::Crowded`] run at once at least: more than a node borrows ahead. On a busy
/// machine its limit is not reached.
const CROWDED: u64 = 8;

/// Runs chaos and asserts that every promise was kept.
async fn kept(options: Options) -> Outcome {
    let options = Options {
        deploys: true,
        // A rate that a busy machine can process: slowness is no failure, but a backlog takes time
        // to drain.
        rate: 40,
        // The deadline of a takeover; a later one counts as missing.
        takeover: Duration::from_secs(15),
        // A job that makes no progress for this time counts as lost.
        patience: Duration::from_secs(300),
        ..options
    };
    println!("seed {}, {} slots", options.seed, options.concurrency);
    let durable_locks = options.durable_locks;
    let outcome = run(options).await;
    println!("{}", outcome.page());
    assert!(
        outcome.holds(),
        "promises were broken: {}",
        outcome.wrongs()
    );
    let counts = &outcome.verdict.counts;
    if durable_locks {
        // Only then are the limits judged, and that is worth something only if they bind.
        assert!(counts.limited_runs > 0, "no job with a limit ran");
        assert!(counts.most_rated >= RATED, "no rate was reached");
        assert!(
            counts.most_limited >= CROWDED,
            "only {} jobs of a key ran at once",
            counts.most_limited
        );
    }
    // The bound holds where a slot is free. Few slots are all taken, so they have only the deadline.
    // On a machine that stood still in the calm, no takeover is judged.
    if durable_locks || counts.calm_takeovers == 0 {
        println!("NOT JUDGED: the 99th percentile of takeovers");
    } else {
        assert!(
            counts.calm_takeovers >= ENOUGH_TAKEOVERS,
            "only {} takeovers can be judged",
            counts.calm_takeovers
        );
        let p99 = Duration::from_micros(u64::try_from(counts.takeover_p99).unwrap_or(u64::MAX));
        assert!(p99 <= TAKEN_OVER_WITHIN, "takeover at p99: {p99:?}");
    }
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a step of its own in scripts/test: cargo test --workspace --test suite chaos:: -- --ignored"]
async fn every_promise_is_kept_while_everything_breaks_on_rabbitmq() {
    bounded(Broker::RabbitMq, Duration::from_secs(75)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a step of its own in scripts/test: cargo test --workspace --test suite chaos:: -- --ignored"]
async fn every_promise_is_kept_while_everything_breaks_on_kafka() {
    bounded(Broker::Kafka, Duration::from_secs(60)).await;
}
