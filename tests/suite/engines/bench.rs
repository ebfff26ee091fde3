//! The bench of the bridge, small: it measures every contender, and each job runs once.

use jobwire_tests::engine_bench::{self, BenchedEngine, Contender, EngineBenchOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::bench"]
async fn the_bench_of_engines_measures_every_contender() {
    // The run fails if a job does not run exactly once.
    let report = engine_bench::run(&EngineBenchOptions {
        engines: vec![BenchedEngine::Flowable],
        contenders: vec![Contender::Rest, Contender::Jobwire, Contender::OwnTuned],
        rates: vec![20],
        seconds: 1,
        jobs: 20,
        drains: 1,
        ..EngineBenchOptions::default()
    })
    .await;
    let engine = &report.engines[0];
    assert!(engine.version.starts_with("Flowable 7"), "{report}");
    let measured: Vec<_> = engine.latency.iter().map(|it| it.contender).collect();
    assert_eq!(
        measured,
        [Contender::Rest, Contender::Jobwire, Contender::OwnTuned]
    );
    for latency in &engine.latency {
        assert!(latency.jobs == 20 && latency.times.p50 > 0.0, "{report}");
    }
    let drained: Vec<_> = engine.drains.iter().map(|it| it.contender).collect();
    assert_eq!(
        drained,
        [Contender::Rest, Contender::Jobwire, Contender::OwnTuned]
    );
    for drain in &engine.drains {
        assert!(drain.jobs == 20 && drain.jobs_per_second > 0.0, "{report}");
    }
    assert!(report.to_string().contains("| jobwire | 20 | 20 |"));
}
