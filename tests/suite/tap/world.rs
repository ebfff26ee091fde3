//! Worlds for tests of the tap: a stream of one table, and a node that only the tap can tell of
//! jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::{Hint, Marker};
use jobwire_core::transport::{Control, Publisher, TransportError, TransportHealth};
use jobwire_core::{
    CommitHook, Handlers, HookOptions, Lane, Node, NodeOptions, Outcome, PgStore, Running, TapMode,
    Transport,
};
use jobwire_tap::{Address, Changes, Event, PgPublication, PublishedTable, Rows, Tap, TapOptions};
use jobwire_tests::wait::patience;
use jobwire_tests::{eventually, shared};
use sqlx::AssertSqlSafe;

use crate::world::{Notes, SOON, World, pass, quick};

/// Returns the address of a database.
pub(super) fn address(url: &str) -> Address {
    let url = url::Url::parse(url).unwrap();
    let host = url.host_str().unwrap();
    let database = url.path().trim_start_matches('/');
    let mut address = Address::new(host, url.port().unwrap(), url.username(), database);
    address.password = url.password().map(str::to_owned);
    address
}

/// A database with a published table `t` of an id, a number and a text.
pub(super) struct Published {
    pub(super) url: String,
    pub(super) store: PgStore,
    pub(super) publication: PgPublication,
}

impl Published {
    pub(super) async fn new(changes: Changes) -> Self {
        Self::on(shared::postgres().await.create_database().await, changes).await
    }

    pub(super) async fn on(url: String, changes: Changes) -> Self {
        let store = crate::world::patient(&url).await;
        let table = PublishedTable::new("public", "t").columns(["id", "note"]);
        let publication = PgPublication::new("watched", changes).table(table);
        let this = Self {
            url,
            store,
            publication,
        };
        this.run("CREATE TABLE t (id int PRIMARY KEY, amount int, note text)")
            .await;
        this.publication.create(&address(&this.url)).await.unwrap();
        this
    }

    pub(super) fn options() -> TapOptions {
        let mut options = TapOptions::default();
        options.publication = "watched".to_owned();
        options.slot_prefix = "watched".to_owned();
        options.pause = Duration::from_millis(20);
        options
    }

    /// Opens a tap and waits until it stands.
    pub(super) async fn tap(&self, options: TapOptions) -> Watcher {
        let mut watcher = Watcher(Tap::open(address(&self.url), options).unwrap());
        watcher.until_standing().await;
        watcher
    }

    pub(super) async fn run(&self, sql: &str) {
        run(&self.store, sql).await;
    }

    pub(super) async fn slots(&self) -> i64 {
        slots(&self.store).await
    }
}

/// A tap whose events are awaited with a deadline.
pub(super) struct Watcher(pub(super) Tap);

impl Watcher {
    pub(super) async fn next(&mut self) -> Event {
        let next = tokio::time::timeout(patience(SOON), self.0.next()).await;
        next.expect("an event of the tap")
    }

    pub(super) async fn until_standing(&mut self) {
        while !matches!(self.next().await, Event::Standing) {}
    }

    /// Returns the rows of the next events, up to a gap or `count` of them.
    pub(super) async fn rows(&mut self, count: usize) -> Vec<Rows> {
        let mut found = Vec::new();
        let mut rows = 0;
        while rows < count {
            match self.next().await {
                Event::Rows(more) => {
                    rows += more.rows.len();
                    found.push(more);
                }
                Event::Gap(why) => panic!("a gap after {rows} rows: {why}"),
                _ => {}
            }
        }
        found
    }

    /// Returns the ids of the next rows.
    pub(super) async fn ids(&mut self, count: usize) -> Vec<String> {
        let rows = self.rows(count).await;
        let ids = rows.iter().flat_map(|rows| rows.texts("id"));
        ids.map(str::to_owned).collect()
    }
}

pub(super) async fn run(store: &PgStore, sql: &str) {
    let statement = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    statement.execute(store.pool()).await.unwrap();
}

/// Returns the number of replication slots of this database.
pub(super) async fn slots(store: &PgStore) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()",
    )
    .fetch_one(store.pool())
    .await
    .unwrap()
}

pub(super) async fn until_no_slot(store: &PgStore) {
    eventually("the replication slot to be gone", SOON, || async {
        (slots(store).await == 0).then_some(())
    })
    .await;
}

/// Ends the server's process behind every slot of this database. Returns their number.
pub(super) async fn terminate(store: &PgStore) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(active_pid)) FROM pg_replication_slots
         WHERE database = current_database() AND active_pid IS NOT NULL",
    )
    .fetch_one(store.pool())
    .await
    .unwrap()
}

/// Waits until a slot of this database streams.
pub(super) async fn until_streaming(store: &PgStore) {
    eventually("a commit tap that stands", SOON, || async {
        let streams: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
             WHERE s.database = current_database() AND r.state = 'streaming')",
        )
        .fetch_one(store.pool())
        .await
        .ok()?;
        streams.then_some(())
    })
    .await;
}

/// Counts the hints that it publishes.
pub(super) struct Counting {
    inner: Arc<dyn Publisher>,
    pub(super) hints: Arc<AtomicU64>,
}

#[async_trait]
impl Publisher for Counting {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        self.hints.fetch_add(hints.len() as u64, Ordering::SeqCst);
        self.inner.publish(lane, hints).await
    }

    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        self.inner.publish_marker(lane, marker).await
    }

    fn tell(&self, control: Control) -> bool {
        self.inner.tell(control)
    }

    fn health(&self) -> TransportHealth {
        self.inner.health()
    }
}

/// A node whose leader cycles are an hour apart, so that only the tap can tell it of jobs of plain
/// SQL.
pub(super) struct Tapped {
    pub(super) world: World,
    pub(super) node: Node,
    pub(super) notes: Notes,
    pub(super) hints: Arc<AtomicU64>,
}

/// Returns options of a node whose leader does nothing within a test unless it is told.
pub(super) fn seldom() -> NodeOptions {
    let hour = Duration::from_secs(3_600);
    let mut options = quick();
    options.lease = hour;
    options.sweep_interval = hour;
    options.suspect_after = hour;
    options.hook.max_age = hour;
    options.tap = TapMode::Auto;
    options
}

pub(super) fn noting(notes: &Notes) -> Handlers {
    let mut handlers = Handlers::default();
    let notes = notes.clone();
    handlers.add("note", move |job: Running<String>| {
        let notes = notes.clone();
        async move {
            notes.add(job.payload);
            Ok(Outcome::Done)
        }
    });
    handlers
}

impl Tapped {
    /// Starts the node and waits until its tap stands and has looked for earlier jobs.
    pub(super) async fn new() -> Self {
        let world = World::new().await;
        world.store.create_tap().await.unwrap();
        let tapped = Self::with(world, seldom()).await;
        tapped.settle().await;
        tapped
    }

    pub(super) async fn with(world: World, options: NodeOptions) -> Self {
        let (notes, hints) = (Notes::default(), Arc::<AtomicU64>::default());
        let counting = Counting {
            inner: world.transport.publisher(),
            hints: hints.clone(),
        };
        let mut hook = HookOptions::default();
        hook.max_age = options.hook.max_age;
        let hook = CommitHook::start(Arc::new(counting), hook);
        let builder = world.node().options(options).hook(hook);
        let node = builder.handlers(noting(&notes)).start().await.unwrap();
        Self {
            world,
            node,
            notes,
            hints,
        }
    }

    /// Waits until the tap stands and has looked for earlier jobs, twice within about a second.
    pub(super) async fn settle(&self) {
        until_streaming(&self.world.store).await;
        pass(Duration::from_secs(3)).await;
    }

    pub(super) async fn run(&self, sql: &str) {
        run(&self.world.store, sql).await;
    }

    /// Commits a job of plain SQL.
    pub(super) async fn create(&self, note: &str) {
        self.run(&format!(
            "SELECT jobwire.create_job(type => 'note', payload => '\"{note}\"')"
        ))
        .await;
    }

    pub(super) fn hints(&self) -> u64 {
        self.hints.load(Ordering::SeqCst)
    }
}
