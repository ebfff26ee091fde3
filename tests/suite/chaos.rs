//! Everything broken at once, for a bounded time: see `jobwire_tests::chaos` and docs/chaos.md. The two runs have a
//! step of their own in `scripts/test`, behind all other tests, so that neither disturbs the other.
//!
//! Budget: 4 minutes on an idle machine of two cores. The seed is drawn from
//! the time and printed; `JOBWIRE_TEST_SEED` gives one. The same seed draws the same jobs and faults, but not the
//! same interleaving.

mod bugs;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jobwire_tests::chaos::options::{Broker, Options};
use jobwire_tests::chaos::run;

fn seed() -> u64 {
    if let Ok(seed) = std::env::var("JOBWIRE_TEST_SEED") {
        return seed.parse().expect("JOBWIRE_TEST_SEED is a number");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is right").as_secs()
}

/// Nodes with the concurrency, the locks and the messages of docs/performance.md: nothing there is bought with a
/// promise.
fn benchmark() -> Options {
    Options {
        concurrency: 2_048,
        durable_locks: false,
        hints_per_message: 64,
        ..Options::default()
    }
}

async fn bounded(options: Options) {
    let options = Options {
        seed: seed(),
        // What a busy machine can keep up with: slow is no failure, but a backlog takes time to drain.
        rate: 40,
        // Only what stands still for so long has been lost.
        patience: Duration::from_secs(300),
        ..options
    };
    println!("seed {}", options.seed);
    let outcome = run(options).await;
    println!("{}", outcome.page());
    assert!(
        outcome.holds(),
        "promises were broken; see the report above"
    );
    assert!(
        outcome.verdict.counts.completed > 0,
        "nothing was completed"
    );
    assert!(!outcome.faults.is_empty(), "nothing was broken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a step of its own in scripts/test: cargo test --workspace --test suite chaos:: -- --ignored"]
async fn every_promise_is_kept_while_everything_breaks_on_rabbitmq() {
    bounded(Options {
        time: Duration::from_secs(75),
        broker: Broker::RabbitMq,
        ..benchmark()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a step of its own in scripts/test: cargo test --workspace --test suite chaos:: -- --ignored"]
async fn every_promise_is_kept_while_everything_breaks_on_kafka() {
    bounded(Options {
        time: Duration::from_secs(60),
        broker: Broker::Kafka,
        ..Options::default()
    })
    .await;
}
