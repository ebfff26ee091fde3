//! Jobs of cases over the endpoint alone, which the engine creates while a node runs.

use jobwire_core::NodeId;
use jobwire_core::store::{CycleOutcome, LeaderCycle, Store};
use jobwire_engines::{EndpointStore, EngineOptions};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::application::Application;
use crate::engines::bridge::zone::cycle_of;

#[tokio::test]
async fn jobs_of_cases_are_told_over_the_endpoint_alone_once_a_minute() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let application = Application::start().await;
    let store = EndpointStore::flowable(EngineOptions::new(application.url())).unwrap();
    let cycle = LeaderCycle {
        reset_at_most: 0,
        ..cycle_of(NodeId::generate())
    };
    for _ in 0..3 {
        let outcome = store.run_leader_cycle(&cycle).await.unwrap();
        assert!(matches!(outcome, CycleOutcome::Leads(_)), "{outcome:?}");
        let metrics = handle.render();
        let series = "jobwire_engine_unserved_jobs{engine=\"flowable\",why=\"scope\"} 2";
        assert!(metrics.contains(series), "{metrics}");
    }
    assert_eq!(application.probes(), 1, "the cycles took no minute");
}
