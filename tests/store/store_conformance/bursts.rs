//! The burst of a rate, on a running node.

use std::time::Duration;

use jobwire_core::{HandlerOptions, Limit, NewJob};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

use super::bed::{Bed, noting};
use super::world::{SqlBench, World};

/// The number of a rate is that of an hour, so that no permit cools down within a test.
pub(super) async fn as_many_jobs_start_at_once_as_the_burst_of_their_rate_says<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let rate = |number| Limit::rate(number, Duration::from_secs(3_600));
    let mut node = bed.node(quick());
    let limits = [
        ("plain", rate(4)),
        ("small", rate(4).burst(2)),
        ("large", rate(1).burst(3)),
    ];
    for (name, limit) in limits {
        let limited = HandlerOptions::default().limit(limit);
        node = node.handler_with(name, limited, noting(&bed.notes));
    }
    let node = node.start().await.unwrap();
    let expected = [("plain", 4, 1), ("small", 2, 3), ("large", 3, 2)];
    for (name, starts, waits) in expected {
        let jobs = (0..starts + waits).map(|_| NewJob::of(name, name));
        bed.create(jobs.collect()).await;
    }
    for (name, starts, waits) in expected {
        eventually("the other jobs to wait", SOON, async || {
            let waiting = w.store.waiting_for_permits(10).await.unwrap();
            let of = waiting.into_iter().find(|of| of.job_type == name)?;
            (of.jobs == waits).then_some(())
        })
        .await;
        eventually("the jobs of the burst to run", SOON, async || {
            let started = bed.notes.all().into_iter().filter(|of| of == name);
            (started.count() == usize::try_from(starts).unwrap()).then_some(())
        })
        .await;
    }
    let left: i64 = expected.iter().map(|(_, _, waits)| waits).sum();
    bed.until_left(left).await;
    node.stop().await;
}
