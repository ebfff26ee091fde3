//! The stage of one engine: its database, its nodes, and Jobwire.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgPool;

use crate::engine_bench::contender::Contender;
use crate::engine_bench::cost::Spent;
use crate::engine_bench::load::{Load, Started};
use crate::engine_bench::moments::{self, Moments};
use crate::engine_bench::options::{BenchedEngine, EngineBenchOptions};
use crate::engine_bench::percentiles::Percentiles;
use crate::engine_bench::report::{Drain, Latency};
use crate::{
    EngineServer, Postgres, Program, RabbitMq, Running, Scratch, Signal, eventually, http,
};

const SOON: Duration = Duration::from_secs(30);
/// Maximum time until all jobs have ended: an executor that has found nothing for a while looks
/// once a minute.
const DONE: Duration = Duration::from_secs(120);
/// The warm-up of the contenders that run in their own process.
const WARM_UP_SECONDS: usize = 2;
/// Attempts to freeze a node between two of its transactions.
const FREEZES: usize = 20;

/// Other sessions that are in a transaction.
const IN_TRANSACTION: &str = "SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND xact_start IS NOT NULL";

/// See the [module](self).
pub(super) struct Stage<'a> {
    options: &'a EngineBenchOptions,
    engine: BenchedEngine,
    database: String,
    pool: PgPool,
    rabbitmq: Option<&'a RabbitMq>,
    /// The node that starts the instances, and executes jobs over REST.
    creator: EngineServer,
    /// Nodes that poll, frozen until their turn.
    nodes: Vec<(Contender, EngineServer)>,
    load: Load,
    home: Scratch,
}

/// A contender in its turn.
enum Turn {
    Jobwire(Box<Running>),
    Own(Contender),
    Bare,
}

impl Turn {
    /// Returns the process of Jobwire.
    fn program(&self) -> Option<u32> {
        match self {
            Turn::Jobwire(node) => Some(node.id()),
            Turn::Own(_) | Turn::Bare => None,
        }
    }
}

impl<'a> Stage<'a> {
    pub(super) async fn open(
        options: &'a EngineBenchOptions,
        engine: BenchedEngine,
        postgres: &Postgres,
        rabbitmq: Option<&'a RabbitMq>,
    ) -> Stage<'a> {
        let database = postgres.create_database().await;
        // It creates the tables, so it starts alone.
        let creator = EngineServer::start(engine.settings(&database)).await;
        let pool = PgPool::connect(&database).await;
        let pool = pool.unwrap_or_else(|error| panic!("the engine's database: {error}"));
        let mut nodes = Vec::new();
        for contender in options.of(engine).filter(|it| it.is_own()) {
            let settings = contender.node(engine, &database, options.acquire_wait);
            nodes.push((contender, EngineServer::start(settings).await));
        }
        let stage = Stage {
            options,
            engine,
            load: Load::on(&creator, &pool),
            creator,
            nodes,
            pool,
            rabbitmq,
            database,
            home: Scratch::new(),
        };
        moments::record(&stage.pool).await;
        for (contender, _) in &stage.nodes {
            stage.freeze(*contender).await;
        }
        let init = stage.jobwire(false, &["engine", "init"]);
        let (status, lines) = init.run(SOON).await;
        assert!(status.success(), "{}", lines.join("\n"));
        stage
    }

    /// Returns the name and the version of the engine.
    pub(super) async fn version(&self) -> String {
        let health = http::get(&self.creator.address(), "/test/health").await;
        let health = health.map_or(Value::Null, |it| {
            serde_json::from_str(&it.body).unwrap_or_default()
        });
        let engine = health.get("engine").and_then(Value::as_str);
        engine.unwrap_or(self.engine.name()).to_owned()
    }

    /// Measures how long jobs wait that arrive at a rate.
    pub(super) async fn latency(&self, contender: Contender, rate: u32) -> Latency {
        let a_second = usize::try_from(rate).unwrap_or(usize::MAX);
        let warm_up = a_second.saturating_mul(WARM_UP_SECONDS);
        self.vacuum().await;
        let executes = contender.is_bare().then_some(contender);
        let turn = if contender.is_own() {
            // The node finds them as soon as it is thawed, and its pauses are short again.
            self.load.prepare(warm_up).await;
            self.begin(contender).await
        } else {
            let turn = self.begin(contender).await;
            self.load.steady(rate, warm_up, executes).await;
            turn
        };
        self.until_done().await;
        let seconds = usize::try_from(self.options.seconds).unwrap_or(usize::MAX);
        let jobs = a_second.saturating_mul(seconds);
        let started = self.load.steady(rate, jobs, executes).await;
        self.until_done().await;
        self.end(turn).await;
        let waits = self.moments(&started).await;
        let waits = waits.iter().map(|job| job.started - job.since).collect();
        Latency {
            contender,
            rate,
            jobs: started.len(),
            times: Percentiles::of(waits),
        }
    }

    /// Measures how fast waiting jobs are run.
    pub(super) async fn drain(&self, contender: Contender, jobs: usize) -> Drain {
        let started = self.load.prepare(jobs).await;
        self.vacuum().await;
        let before = self.spent(None).await;
        let turn = self.begin(contender).await;
        if contender.is_bare() {
            let at_once = self.options.concurrency;
            self.load.execute_all(contender, at_once).await;
        }
        self.until_done().await;
        let after = self.spent(turn.program()).await;
        self.end(turn).await;
        let moments = self.moments(&started).await;
        let starts = || moments.iter().map(|job| job.started);
        let time = starts().max().unwrap_or(0) - starts().min().unwrap_or(0);
        let seconds = time as f64 / 1e6;
        Drain {
            contender,
            round: 0,
            jobs,
            seconds,
            jobs_per_second: jobs as f64 / seconds.max(1e-6),
            cost: after.since(&before, jobs),
        }
    }

    /// Returns the cost so far of the engine, of a node of Jobwire and of the database.
    async fn spent(&self, node: Option<u32>) -> Spent {
        let engines = std::iter::once(&self.creator).chain(self.nodes.iter().map(|(_, it)| it));
        let engines = engines.filter_map(EngineServer::id).collect();
        Spent::now(&self.pool, engines, node).await
    }

    /// Returns the contenders of this engine.
    pub(super) fn contenders(&self) -> impl Iterator<Item = Contender> + use<> {
        let all: Vec<Contender> = self.options.of(self.engine).collect();
        all.into_iter()
    }

    async fn moments(&self, started: &[Started]) -> Vec<Moments> {
        moments::of(&self.pool, started).await
    }

    async fn begin(&self, contender: Contender) -> Turn {
        match contender {
            Contender::Rest | Contender::Endpoint => Turn::Bare,
            Contender::Own | Contender::OwnTuned => {
                self.node(contender).signal(Signal::SIGCONT);
                Turn::Own(contender)
            }
            Contender::Jobwire | Contender::JobwireEndpoint | Contender::JobwireRabbitMq => {
                let mut program = self.jobwire(contender.has_endpoint(), &["engine", "run"]);
                if let Some(rabbitmq) = self.rabbitmq
                    && contender == Contender::JobwireRabbitMq
                {
                    program = program.env("JOBWIRE_BROKER_URL", rabbitmq.url());
                }
                let node = program.start();
                if let Some(processor) = self.options.node_processor {
                    run_on(processor, node.id());
                }
                let ready = node.wait_for_line("is ready", SOON).await;
                let address = http::address_in(&ready);
                eventually("the commit tap to stand", SOON, || async {
                    let metrics = http::get(&address, "/metrics").await.ok()?.body;
                    metrics
                        .lines()
                        .any(|line| {
                            line.starts_with("jobwire_tap_standing") && line.ends_with(" 1")
                        })
                        .then_some(())
                })
                .await;
                Turn::Jobwire(Box::new(node))
            }
        }
    }

    async fn end(&self, turn: Turn) {
        match turn {
            Turn::Bare => {}
            Turn::Own(contender) => self.freeze(contender).await,
            Turn::Jobwire(mut node) => {
                node.signal(Signal::SIGTERM);
                let status = node.exit(SOON).await;
                assert!(status.success(), "{status}: {}", node.lines().tail());
            }
        }
    }

    fn node(&self, contender: Contender) -> &EngineServer {
        let node = self.nodes.iter().find(|(of, _)| *of == contender);
        let (_, node) = node.expect("each contender of an engine has a node");
        node
    }

    /// Freezes a node outside of its transactions: an open one would hold up the tap of Jobwire,
    /// and might hold rows.
    async fn freeze(&self, contender: Contender) {
        let node = self.node(contender);
        for _ in 0..FREEZES {
            node.signal(Signal::SIGSTOP);
            let quiet = crate::wait::within(Duration::from_millis(200), || async {
                let open: i64 = sqlx::query_scalar(IN_TRANSACTION)
                    .fetch_one(&self.pool)
                    .await
                    .ok()?;
                (open == 0).then_some(())
            });
            if quiet.await.is_some() {
                return;
            }
            node.signal(Signal::SIGCONT);
        }
        panic!("{} is always in a transaction", contender.name());
    }

    /// Waits until every instance has ended.
    async fn until_done(&self) {
        eventually("every job to be run", DONE, || async {
            let left = sqlx::query_scalar("SELECT count(*) FROM act_ru_execution");
            let left: i64 = left.fetch_one(&self.pool).await.ok()?;
            (left == 0).then_some(())
        })
        .await;
    }

    /// Gives each turn tables without dead rows.
    async fn vacuum(&self) {
        let vacuum = sqlx::raw_sql("VACUUM act_ru_job, act_ru_execution, act_ru_variable");
        let done = vacuum.execute(&self.pool).await;
        done.unwrap_or_else(|error| panic!("VACUUM: {error}"));
    }

    /// Returns the program with the settings of this engine, and of the endpoint if it is used.
    fn jobwire(&self, by_endpoint: bool, arguments: &[&str]) -> Program {
        let by_endpoint = by_endpoint || self.creator.program().rest().is_none();
        let program = match &self.options.program {
            Some(path) => Program::at(path),
            None => Program::jobwire(),
        };
        let (user, password) = EngineServer::USER;
        let url = match by_endpoint {
            true => self.creator.endpoint(),
            false => self.creator.url(),
        };
        let url = url.replace("http://", &format!("http://{user}:{password}@"));
        program
            .in_directory(self.home.path())
            .env("JOBWIRE_ENGINE_TYPE", self.engine.name())
            .env("JOBWIRE_ENGINE_DATABASE_URL", &self.database)
            .env("JOBWIRE_ENGINE_URL", url)
            .env(
                "JOBWIRE_ENGINE_EXECUTE",
                if by_endpoint { "endpoint" } else { "rest" },
            )
            .env(
                "JOBWIRE_ENGINE_CONCURRENCY",
                self.options.concurrency.to_string(),
            )
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .args(arguments)
    }
}

/// Moves all threads of a process to one processor.
fn run_on(processor: u32, process: u32) {
    let mut taskset = std::process::Command::new("taskset");
    taskset.args(["-acp", &processor.to_string(), &process.to_string()]);
    let done = taskset.stdout(std::process::Stdio::null()).status();
    let done = done.unwrap_or_else(|error| panic!("taskset (package util-linux): {error}"));
    assert!(done.success(), "taskset -acp {processor} {process}: {done}");
}
