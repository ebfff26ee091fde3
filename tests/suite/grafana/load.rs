//! A fleet under load: two `jobwire run` processes with PostgreSQL and RabbitMQ, and this test as
//! the producer. A Prometheus scrapes it like any program that uses the library.

use std::time::Duration;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::telemetry::metrics::{ALL, COUNT_BUCKETS, Kind, SECONDS_BUCKETS, describe};
use jobwire_core::{Client, CommitHook, NewJob, PgStore, Transport};
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{Program, Running};
use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The number of successful attempts that one call of `create` causes.
pub(super) const DONE: usize = NOOPS + EXCLUSIVE + LONG + TIMERS + BY_SQL;
pub(super) const NOOPS: usize = 600;
pub(super) const EXCLUSIVE: usize = 60;
pub(super) const LONG: usize = 2;
pub(super) const TIMERS: usize = 10;
pub(super) const BY_SQL: usize = 5;
/// Jobs that become dead letters, at once or after a retry.
pub(super) const REFUSED: usize = 6;
pub(super) const RETRIED: usize = 3;
/// Jobs of a type without a handler.
pub(super) const UNSERVED: usize = 4;

pub(super) struct Load {
    store: PgStore,
    jobs: Client<PgStore>,
    database: String,
    space: Space,
    producer: String,
    _transport: AmqpTransport,
}

/// A recorder for everything on this thread and nothing of other tests: the tasks of a test stay on
/// its own thread.
pub(super) struct Recorder {
    _guard: LocalRecorderGuard<'static>,
    handle: metrics_exporter_prometheus::PrometheusHandle,
}

impl Recorder {
    pub(super) fn install() -> Recorder {
        let mut builder = PrometheusBuilder::new();
        for metric in ALL {
            let buckets = match metric.kind {
                Kind::Seconds => SECONDS_BUCKETS,
                Kind::Count => COUNT_BUCKETS,
                Kind::Counter | Kind::Gauge => continue,
            };
            let name = Matcher::Full(metric.name.to_owned());
            builder = builder.set_buckets_for_metric(name, buckets).unwrap();
        }
        let recorder = Box::leak(Box::new(builder.build_recorder()));
        let handle = recorder.handle();
        let guard = metrics::set_default_local_recorder(recorder);
        describe();
        Recorder {
            _guard: guard,
            handle,
        }
    }

    /// Serves the recorded metrics; returns the address.
    async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let handle = self.handle.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n";
                let answer = format!("{head}{}", handle.render());
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        address
    }
}

impl Load {
    pub(super) async fn prepare(recorder: &Recorder) -> Load {
        let database = shared::postgres().await.create_database().await;
        let space = shared::rabbitmq().await.space().await;
        let store = PgStore::connect(&database).await.unwrap();
        store.migrate().await.unwrap();
        let mut options = AmqpOptions::default();
        options.prefix.clone_from(&space.prefix);
        options.confirm_timeout = Duration::from_secs(60);
        let transport = AmqpTransport::connect(&space.url, options).await.unwrap();
        let mut patient = HookOptions::default();
        patient.max_age = Duration::from_secs(60);
        let hook = CommitHook::start(transport.publisher(), patient);
        Load {
            jobs: store.client(hook),
            store,
            database,
            space,
            producer: recorder.serve().await,
            _transport: transport,
        }
    }

    /// Returns the address at which the producer serves its metrics.
    pub(super) fn producer(&self) -> String {
        self.producer.clone()
    }

    /// Starts a node; returns it and the address of its metrics.
    pub(super) async fn node(&self) -> (Running, String) {
        let node = Program::jobwire()
            .args(["run"])
            .env("JOBWIRE_DATABASE_URL", &self.database)
            .env("JOBWIRE_BROKER_URL", &self.space.url)
            .env("JOBWIRE_AMQP_PREFIX", &self.space.prefix)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .env("JOBWIRE_HTTP_ALLOW_HOSTS", "127.0.0.1")
            // A machine that stalls for some seconds must not change the counts: no lease expires,
            // no hint is dropped for its age or sent twice.
            .env("JOBWIRE_LEASE", "30s")
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_HINT_MAX_AGE", "60s")
            .env("JOBWIRE_SUSPECT_AFTER", "60s")
            .env("JOBWIRE_AMQP_CONFIRM_TIMEOUT", "60s")
            .start();
        let line = node
            .wait_for_line("is ready", Duration::from_secs(60))
            .await;
        let (_, address) = line
            .rsplit_once("http://")
            .expect("the address of /metrics");
        (node, address.trim().to_owned())
    }

    /// Creates every kind of job. Returns when all of them are committed.
    pub(super) async fn create(&self) {
        for _ in 0..NOOPS / 50 {
            self.commit((0..50).map(|_| NewJob::of("noop", &())).collect())
                .await;
        }
        for n in 0..EXCLUSIVE {
            let job = NewJob::of("noop", &()).instance(format!("case-{}", n % 5));
            self.jobs.create(job).await.unwrap();
        }
        // Longer than a third of the lease, so that the leases are renewed.
        let long = |_| NewJob::of("sleep", &serde_json::json!({ "ms": 12_000 }));
        self.commit((0..LONG).map(long).collect()).await;
        // Spread over several scrapes: a series that appears with its last value has no rate.
        let timer =
            |n| NewJob::of("noop", &()).delay(Duration::from_millis(2_000 + 500 * n as u64));
        self.commit((0..TIMERS).map(timer).collect()).await;
        let refused = serde_json::json!({ "url": "http://not-allowed.example/" });
        // Another node might allow that host, so each refusal is an attempt.
        let refused = |_| NewJob::of("http", &refused).max_attempts(1);
        self.commit((0..REFUSED).map(refused).collect()).await;
        // Port 9 is "discard": no server listens there.
        let nobody = serde_json::json!({ "url": "http://127.0.0.1:9/" });
        let retried = |_| {
            NewJob::of("http", &nobody)
                .max_attempts(2)
                .retry_policy_text("PT1S")
        };
        self.commit((0..RETRIED).map(retried).collect()).await;
        let unserved = |_| NewJob::of("nobody-serves-this", &());
        self.commit((0..UNSERVED).map(unserved).collect()).await;
        for _ in 0..BY_SQL {
            sqlx::query("SELECT jobwire.create_job(type => 'noop')")
                .execute(self.store.pool())
                .await
                .unwrap();
        }
    }

    /// Creates more jobs until it is dropped: rates and quantiles of an unchanged counter are
    /// empty.
    pub(super) async fn keep_creating(&self) {
        loop {
            self.create().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn commit(&self, jobs: Vec<NewJob>) {
        let mut transaction = self.jobs.begin().await.unwrap();
        transaction.create_many(jobs).await.unwrap();
        transaction.commit().await.unwrap();
    }
}
