//! Instances that an engine node starts, each in a transaction of its own.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::types::chrono::Utc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::engine_bench::contender::Contender;
use crate::engine_bench::kept_connections::KeptConnections;
use crate::engine_bench::options::BenchedEngine;
use crate::{EngineProgram, EngineServer};

/// A process with one asynchronous task.
const START: &str = "/test/start?process=one&count=";
/// Maximum number of instances of one request.
const MANY: usize = 50;
/// The number of requests at once that prepare jobs.
const AT_ONCE: usize = 4;

/// An instance, and the request that executes its job, if the bench sent one: microseconds since
/// 1970.
#[derive(Clone, Debug)]
pub(super) struct Started {
    pub(super) instance: String,
    pub(super) requested: Option<i64>,
}

/// Starts instances. Cheap to clone.
#[derive(Clone)]
pub(super) struct Load(Arc<Inner>);

struct Inner {
    connections: KeptConnections,
    program: EngineProgram,
    pool: PgPool,
}

impl Load {
    pub(super) fn on(engine: &EngineServer, pool: &PgPool) -> Load {
        Load(Arc::new(Inner {
            connections: KeptConnections::to(engine.address(), EngineServer::AUTHORIZATION),
            program: engine.program(),
            pool: pool.clone(),
        }))
    }

    /// Starts `count` instances as fast as the engine does.
    pub(super) async fn prepare(&self, count: usize) -> Vec<Started> {
        let mut parts = (0..count)
            .step_by(MANY)
            .map(|from| MANY.min(count - from))
            .collect::<Vec<_>>();
        let mut starting = JoinSet::new();
        let mut started = Vec::with_capacity(count);
        loop {
            while starting.len() < AT_ONCE
                && let Some(part) = parts.pop()
            {
                let load = self.clone();
                starting.spawn(async move { load.start(part).await });
            }
            let Some(instances) = starting.join_next().await else {
                return started;
            };
            started.extend(instances.expect("its failure is a panic, reported above"));
        }
    }

    /// Starts `count` instances, each at its planned time, whether or not those before have been
    /// started. With `executes`, the bench executes each job itself.
    pub(super) async fn steady(
        &self,
        rate: u32,
        count: usize,
        executes: Option<Contender>,
    ) -> Vec<Started> {
        let (began, period) = (Instant::now(), Duration::from_secs(1) / rate);
        let mut starting = JoinSet::new();
        for nth in (0_u32..).take(count) {
            tokio::time::sleep_until(began + period * nth).await;
            let load = self.clone();
            starting.spawn(async move {
                let mut started = load.start(1).await;
                if let Some(way) = executes {
                    for started in &mut started {
                        let job = load.job(&started.instance).await;
                        started.requested = Some(load.execute(&job, way).await);
                    }
                }
                started
            });
        }
        starting.join_all().await.into_iter().flatten().collect()
    }

    async fn start(&self, count: usize) -> Vec<Started> {
        let path = format!("{START}{count}");
        let answer = self.0.connections.post(&path, "").await;
        let answer = answer.unwrap_or_else(|error| panic!("the engine does not answer: {error}"));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let instances: Vec<String> = serde_json::from_str(&answer.body)
            .unwrap_or_else(|error| panic!("{error}: {}", answer.body));
        instances
            .into_iter()
            .map(|instance| Started {
                instance,
                requested: None,
            })
            .collect()
    }

    async fn job(&self, instance: &str) -> String {
        sqlx::query_scalar("SELECT id_ FROM act_ru_job WHERE process_instance_id_ = $1")
            .bind(instance)
            .fetch_one(&self.0.pool)
            .await
            .unwrap_or_else(|error| panic!("the job of {instance}: {error}"))
    }

    /// Executes every waiting job, `at_once` of them at a time.
    pub(super) async fn execute_all(&self, way: Contender, at_once: usize) {
        let jobs = sqlx::query_scalar("SELECT id_ FROM act_ru_job ORDER BY id_");
        let jobs: Vec<String> = jobs
            .fetch_all(&self.0.pool)
            .await
            .unwrap_or_else(|error| panic!("the waiting jobs: {error}"));
        let mut executing = JoinSet::new();
        for job in jobs {
            if executing.len() >= at_once {
                executing.join_next().await;
            }
            let load = self.clone();
            executing.spawn(async move { load.execute(&job, way).await });
        }
        executing.join_all().await;
    }

    /// Executes a job, and returns when the request was sent.
    async fn execute(&self, job: &str, way: Contender) -> i64 {
        let (path, body) = BenchedEngine::execution(self.0.program, way.has_endpoint(), job);
        let connected = self.0.connections.ready().await;
        connected.unwrap_or_else(|error| panic!("the engine does not listen: {error}"));
        let sent = Utc::now().timestamp_micros();
        let answer = self.0.connections.post(&path, body).await;
        let answer = answer.unwrap_or_else(|error| panic!("the engine does not answer: {error}"));
        assert!(matches!(answer.status, 200..=299), "{}", answer.body);
        sent
    }
}
