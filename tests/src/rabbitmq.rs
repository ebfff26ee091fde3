//! A private RabbitMQ node for tests.

pub mod tls;

use self::tls::{PLUGINS, Tls};
use crate::rabbitmqctl::{NODE, RabbitMqCtl, USER};
use crate::{Scratch, Server, Signal, amqp_handshake, eventually, need, port};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;
use uuid::Uuid;

/// Erlang takes six seconds on two cores, and much longer on a busy machine.
const START: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(60);

/// One node without plugins (except for TLS), with its own epmd, cookie, directories and loopback
/// ports. They stay the same after [`RabbitMq::stop`], [`RabbitMq::kill`] and
/// [`RabbitMq::start_again`].
#[derive(Debug)]
pub struct RabbitMq {
    // Before the directory: fields drop in this order.
    node: Option<Server>,
    _epmd: Server,
    ctl: RabbitMqCtl,
    port: u16,
    distribution_port: u16,
    /// TLS and its port.
    tls: Option<(Tls, u16)>,
    password: String,
    scratch: Scratch,
}

impl RabbitMq {
    /// Starts a node and returns when it answers.
    ///
    /// # Panics
    /// If RabbitMQ is missing and cannot be installed, or does not start.
    pub async fn start() -> RabbitMq {
        RabbitMq::start_with(None).await
    }

    /// Starts a node with a TLS listener beside the plain one.
    ///
    /// # Panics
    /// As [`RabbitMq::start`].
    pub async fn start_with_tls(tls: Tls) -> RabbitMq {
        RabbitMq::start_with(Some((tls, port::free()))).await
    }

    async fn start_with(tls: Option<(Tls, u16)>) -> RabbitMq {
        let scratch = Scratch::in_memory();
        let epmd_port = port::free();
        let ctl = RabbitMqCtl::new(scratch.path(), epmd_port);
        // Finds the server first: installing its package also installs epmd.
        drop(ctl.command("rabbitmq-server"));
        let mut rabbitmq = RabbitMq {
            node: None,
            _epmd: start_epmd(epmd_port),
            ctl,
            port: port::free(),
            distribution_port: port::free(),
            tls,
            password: Uuid::new_v4().simple().to_string(),
            scratch,
        };
        rabbitmq.write_files();
        rabbitmq.start_again().await;
        rabbitmq
    }

    fn write_files(&self) {
        let cookie = self.scratch.write(".erlang.cookie", &self.password);
        std::fs::set_permissions(&cookie, std::fs::Permissions::from_mode(0o400))
            .unwrap_or_else(|error| panic!("cannot protect {}: {error}", cookie.display()));
        let plugins = self.tls.as_ref().map_or("[].\n", |_| PLUGINS);
        let _ = self.scratch.write("enabled_plugins", plugins);
        let RabbitMq { port, password, .. } = self;
        let mut settings = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\n\
             loopback_users = none\n\
             default_user = {USER}\n\
             default_pass = {password}\n\
             vm_memory_high_watermark.absolute = 1GB\n\
             disk_free_limit.absolute = 50MB\n\
             log.file = false\n\
             log.console = true\n\
             log.console.level = warning\n"
        );
        if let Some((tls, port)) = &self.tls {
            settings.push_str(&tls.settings(*port));
        }
        let _ = self.scratch.write("rabbitmq.conf", settings);
    }

    /// Returns the URL of the default virtual host, as the node's administrator.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(USER, &self.password, "%2F")
    }

    /// Returns the URL of a virtual host for a user.
    #[must_use]
    pub fn url_of(&self, user: &str, password: &str, vhost: &str) -> String {
        format!("amqp://{user}:{password}@127.0.0.1:{}/{vhost}", self.port)
    }

    /// Returns the TLS URL of a virtual host, as the node's administrator, with this host name;
    /// `None` without TLS.
    #[must_use]
    pub fn tls_url(&self, host: &str, vhost: &str) -> Option<String> {
        let (_, port) = self.tls.as_ref()?;
        let password = &self.password;
        Some(format!("amqps://{USER}:{password}@{host}:{port}/{vhost}"))
    }

    /// Returns the port of the TLS listener, if there is one.
    #[must_use]
    pub fn tls_port(&self) -> Option<u16> {
        self.tls.as_ref().map(|(_, port)| *port)
    }

    /// Returns the address, for a [`crate::Proxy`].
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Creates a virtual host and returns its URL.
    pub async fn create_vhost(&self) -> String {
        self.url_of(USER, &self.password, &self.ctl.create_vhost().await)
    }

    /// Returns `rabbitmqctl` for this node.
    #[must_use]
    pub fn ctl(&self) -> &RabbitMqCtl {
        &self.ctl
    }

    /// Returns the node's log (warnings and worse) since its last start.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.node
            .as_ref()
            .map(|node| node.output().all())
            .unwrap_or_default()
    }

    /// Starts it after [`RabbitMq::stop`] or [`RabbitMq::kill`], with the same queues on the same
    /// port, and returns when it answers.
    pub async fn start_again(&mut self) {
        let mut server = self.ctl.command("rabbitmq-server");
        let home = &self.scratch;
        server
            .env("RABBITMQ_CONFIG_FILE", home.join("rabbitmq.conf"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", home.join("no-such.config"))
            .env(
                "RABBITMQ_ENABLED_PLUGINS_FILE",
                home.join("enabled_plugins"),
            )
            .env("RABBITMQ_MNESIA_BASE", home.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", home.join("log"))
            .env("RABBITMQ_PID_FILE", home.join("pid"))
            .env("RABBITMQ_DIST_PORT", self.distribution_port.to_string())
            // With this the script becomes the node instead of supervising it, so that signals
            // reach the node itself.
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false",
            )
            .arg("-noinput");
        let node = self
            .node
            .insert(Server::start(&format!("RabbitMQ ({NODE})"), server));
        eventually("RabbitMQ to take connections", START, || {
            node.assert_running();
            amqp_handshake::answers(self.port)
        })
        .await;
    }

    /// Stops it in an orderly way.
    pub async fn stop(&mut self) {
        if let Some(mut node) = self.node.take() {
            node.signal(Signal::SIGTERM);
            node.exit(STOP).await;
        }
    }

    /// Kills it, as a crash would. It may lose the latest declarations, durable or not, unless
    /// [`RabbitMq::flush`] ran in between.
    pub fn kill(&mut self) {
        // Its few helper processes end by themselves when their pipes close.
        self.node = None;
    }

    /// Writes everything declared so far to the disk.
    pub async fn flush(&self) {
        self.ctl.run(&["eval", "ok = mnesia:sync_log()."]).await;
    }

    /// Freezes it with all its connections open, as on an overloaded machine.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes it after [`RabbitMq::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(node) = &self.node {
            node.signal(signal);
        }
    }
}

/// Starts an epmd. Otherwise Erlang would start one, as a daemon that outlives the node.
fn start_epmd(port: u16) -> Server {
    let directory = need::directory_of("epmd", "erlang-base", Vec::new);
    let mut command = Command::new(directory.join("epmd"));
    command.args(["-address", "127.0.0.1", "-port", &port.to_string()]);
    Server::start("epmd", command)
}
