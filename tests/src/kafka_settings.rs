//! The settings of a private Kafka broker: its `server.properties`.

use crate::kafka_security::Security;
use crate::{Authority, Identity, Proxy, port};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Settings for tests. Durability keeps its defaults, so that tests measure and survive the same as
/// a user's broker.
const SETTINGS: [(&str, &str); 29] = [
    ("process.roles", "broker,controller"),
    ("controller.listener.names", "CONTROLLER"),
    ("inter.broker.listener.name", "PLAIN"),
    ("auto.create.topics.enable", "false"),
    ("num.partitions", "1"),
    ("default.replication.factor", "1"),
    ("offsets.topic.replication.factor", "1"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
    // Kafka's default of fifty partitions takes long to create, and longer to load.
    ("offsets.topic.num.partitions", "2"),
    ("transaction.state.log.num.partitions", "1"),
    ("share.coordinator.state.topic.num.partitions", "1"),
    // A test waits as long as this.
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "1000"),
    ("log.retention.check.interval.ms", "500"),
    ("log.initial.task.delay.ms", "500"),
    ("log.segment.delete.delay.ms", "500"),
    ("log.cleaner.backoff.ms", "500"),
    // A broker that was killed may join again when its session has ended.
    ("broker.session.timeout.ms", "3000"),
    ("broker.heartbeat.interval.ms", "500"),
    // Few threads and small buffers: several brokers share two cores.
    ("log.cleaner.dedupe.buffer.size", "4194304"),
    ("num.network.threads", "2"),
    ("num.io.threads", "4"),
    ("background.threads", "2"),
    ("num.recovery.threads.per.data.dir", "1"),
    ("num.replica.fetchers", "1"),
    ("remote.log.manager.thread.pool.size", "1"),
];

/// Logs warnings and worse, but not those of every start.
pub(crate) const LOG4J: &str = "\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
";

/// Settings of a [`crate::Kafka`] that differ from the usual ones.
///
/// ```no_run
/// # use jobwire_tests::{Kafka, KafkaSettings};
/// # async fn f() {
/// let mut settings = KafkaSettings::new().set("log.segment.bytes", "1048576");
/// let proxy = settings.proxy().await;
/// let kafka = Kafka::start_with(settings).await;
/// let url = proxy.url(&kafka.url()); // clients of this URL use the proxy only
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    pub(crate) node: u16,
    pub(crate) port: u16,
    pub(crate) voters: Vec<(u16, u16)>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) log_directory: Option<PathBuf>,
    pub(crate) security: Option<Security>,
    extra: Vec<(String, String)>,
}

/// A listener of a broker.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    pub(crate) name: &'static str,
    pub(crate) protocol: &'static str,
    pub(crate) port: u16,
    /// The port that clients are told to connect to.
    pub(crate) advertised: u16,
}

impl KafkaSettings {
    /// Returns the usual settings: one node, which is broker and controller.
    #[must_use]
    pub fn new() -> KafkaSettings {
        KafkaSettings {
            node: 1,
            port: port::free(),
            voters: vec![(1, port::free())],
            listeners: Vec::new(),
            log_directory: None,
            security: None,
            extra: Vec::new(),
        }
    }

    /// Sets a property of the broker, overriding the harness's or Kafka's value.
    #[must_use]
    pub fn set(mut self, property: &str, value: impl ToString) -> KafkaSettings {
        self.extra.push((property.to_owned(), value.to_string()));
        self
    }

    /// Keeps the log in this directory instead of the broker's own. Nothing else may use it:
    /// [`crate::Kafka::wipe`] empties it.
    #[must_use]
    pub fn log_directory(mut self, directory: &Path) -> KafkaSettings {
        self.log_directory = Some(directory.to_owned());
        self
    }

    /// Starts a proxy in front of this broker. Kafka tells clients where to connect; clients that
    /// come through the proxy are told the proxy's address. The broker's own [`crate::Kafka::url`]
    /// bypasses it.
    pub async fn proxy(&mut self) -> Proxy {
        let port = port::free();
        let proxy = Proxy::start(&format!("127.0.0.1:{port}")).await;
        self.listeners.push(Listener {
            name: "PROXIED",
            protocol: "PLAINTEXT",
            port,
            advertised: proxy.address().port(),
        });
        proxy
    }

    /// Adds a listener for each [`crate::KafkaListener`], with a certificate of this authority. The
    /// authority also decides which clients' certificates are accepted.
    #[must_use]
    pub fn secured_by(self, authority: &Authority) -> KafkaSettings {
        let server = authority.server();
        self.secured_as(authority, &server)
    }

    /// Adds the same listeners with the given certificate.
    #[must_use]
    pub fn secured_as(mut self, authority: &Authority, server: &Identity) -> KafkaSettings {
        self.security = Some(Security::new(authority, server));
        self
    }

    /// Returns the properties file; later lines win.
    pub(crate) fn properties(&self, log_directory: &Path) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Paths and PEM files contain escape characters of properties files.
            let value = value.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "{name}={value}");
        };
        for (name, value) in SETTINGS {
            line(name, value);
        }
        line("node.id", &self.node.to_string());
        line("log.dirs", &log_directory.display().to_string());
        let voters = self.voters.iter();
        let voters = voters.map(|(node, port)| format!("{node}@127.0.0.1:{port}"));
        line(
            "controller.quorum.voters",
            &voters.collect::<Vec<_>>().join(","),
        );
        let listeners = self.all_listeners();
        line(
            "listeners",
            &addresses(&listeners, |listener| listener.port),
        );
        line(
            "listener.security.protocol.map",
            &listeners
                .iter()
                .map(|listener| format!("{}:{}", listener.name, listener.protocol))
                .collect::<Vec<_>>()
                .join(","),
        );
        // The list of voters advertises the controllers' listener.
        let advertised = &listeners[..listeners.len() - 1];
        line(
            "advertised.listeners",
            &addresses(advertised, |listener| listener.advertised),
        );
        for (name, value) in self.security.iter().flat_map(Security::properties) {
            line(name, &value);
        }
        for (name, value) in &self.extra {
            line(name, value);
        }
        text
    }

    /// Returns all listeners, the controllers' last.
    fn all_listeners(&self) -> Vec<Listener> {
        let plain = |name, port| Listener {
            name,
            protocol: "PLAINTEXT",
            port,
            advertised: port,
        };
        let own = self.voters.iter().find(|(node, _)| *node == self.node);
        let (_, controller) = own.expect("every node is a controller");
        let mut listeners = vec![plain("PLAIN", self.port)];
        listeners.extend(self.listeners.iter().cloned());
        let secured = self.security.iter().flat_map(|all| &all.listeners);
        listeners.extend(secured.map(|(_, listener)| listener.clone()));
        listeners.push(plain("CONTROLLER", *controller));
        listeners
    }
}

fn addresses(listeners: &[Listener], port: impl Fn(&Listener) -> u16) -> String {
    let addresses = listeners
        .iter()
        .map(|listener| format!("{}://127.0.0.1:{}", listener.name, port(listener)));
    addresses.collect::<Vec<_>>().join(",")
}

impl Default for KafkaSettings {
    fn default() -> KafkaSettings {
        KafkaSettings::new()
    }
}
