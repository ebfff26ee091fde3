//! `rabbitmqctl` on a private node: virtual hosts, users, any other command.

use crate::need;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tokio::sync::Mutex;
use uuid::Uuid;

/// The user that a private node starts with.
pub const USER: &str = "jobwire";

/// The node's name. It need not be unique: every node has its own epmd.
pub(crate) const NODE: &str = "jobwire@localhost";

/// The number of virtual hosts made at once: a call of `rabbitmqctl` takes a second, a virtual host
/// 20 ms.
const VHOSTS_PER_CALL: usize = 16;

/// The number of attempts to reach a node.
const ATTEMPTS: usize = 5;

/// The data with which a command-line tool reaches one node.
#[derive(Clone, Debug)]
pub struct RabbitMqCtl {
    home: PathBuf,
    epmd_port: u16,
    vhosts: Arc<Mutex<Vec<String>>>,
}

impl RabbitMqCtl {
    pub(crate) fn new(home: &Path, epmd_port: u16) -> RabbitMqCtl {
        let (home, vhosts) = (home.to_owned(), Arc::default());
        RabbitMqCtl {
            home,
            epmd_port,
            vhosts,
        }
    }

    /// Returns the tool for the node with this [`RabbitMqCtl::address`], also from another process.
    pub(crate) fn at(address: &str) -> Option<RabbitMqCtl> {
        let (port, home) = address.split_once(':')?;
        Some(RabbitMqCtl::new(Path::new(home), port.parse().ok()?))
    }

    /// Returns the address with which another process reaches the node.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", self.epmd_port, self.home.display())
    }

    /// Returns a command of one of RabbitMQ's programs, in the environment of this node.
    pub(crate) fn command(&self, program: &str) -> Command {
        let places = || vec![PathBuf::from("/usr/lib/rabbitmq/bin")];
        // Debian's programs in PATH are wrappers that change user and directory.
        let directory = need::directory_of("rabbitmq-server", "rabbitmq-server", places);
        let mut command = Command::new(directory.join(program));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("RABBITMQ_") || name.starts_with("ERL_") {
                command.env_remove(&*name);
            }
        }
        command
            .current_dir(&self.home)
            .env("HOME", &self.home)
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("RABBITMQ_NODENAME", NODE)
            // The machine's own file of settings must not be read.
            .env("RABBITMQ_CONF_ENV_FILE", self.home.join("no-such-file"))
            .env(
                "RABBITMQ_CTL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}",
            );
        command
    }

    /// Runs `rabbitmqctl` and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub async fn run(&self, arguments: &[&str]) -> String {
        let mut attempts = 0;
        let output = loop {
            let mut command = self.command("rabbitmqctl");
            command.arg("--quiet").args(arguments);
            let output = tokio::process::Command::from(command).output().await;
            let output = output.unwrap_or_else(|error| panic!("cannot start rabbitmqctl: {error}"));
            attempts += 1;
            // On a busy machine the tool may time out before it reaches the node; then it did
            // nothing.
            let said = String::from_utf8_lossy(&output.stderr);
            if !said.contains("unable to perform an operation on node") || attempts == ATTEMPTS {
                break output;
            }
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "rabbitmqctl {arguments:?} failed:\n{said}"
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Creates a virtual host in which [`USER`] has all rights, and returns its name.
    pub async fn create_vhost(&self) -> String {
        let mut stock = self.vhosts.lock().await;
        if stock.is_empty() {
            *stock = self.make_vhosts().await;
        }
        stock.pop().expect("the stock was just filled")
    }

    async fn make_vhosts(&self) -> Vec<String> {
        let names: Vec<String> = (0..VHOSTS_PER_CALL)
            .map(|_| format!("test-{}", Uuid::new_v4().simple()))
            .collect();
        let list = names.iter().map(|name| format!("<<\"{name}\">>"));
        let list = list.collect::<Vec<_>>().join(", ");
        let all = "<<\".*\">>";
        let program = format!(
            "User = <<\"{USER}\">>, \
             [begin \
                ok = rabbit_vhost:add(Name, User), \
                rabbit_auth_backend_internal:set_permissions(User, Name, {all}, {all}, {all}, User) \
              end || Name <- [{list}]], ok."
        );
        self.run(&["eval", &program]).await;
        names
    }

    /// Adds a user with these rights (regular expressions for the names of queues and exchanges) in
    /// one virtual host.
    pub async fn add_user(&self, user: &User<'_>) {
        let User {
            name,
            password,
            vhost,
            configure,
            write,
            read,
        } = *user;
        self.run(&["add_user", name, password]).await;
        self.run(&["set_permissions", "-p", vhost, name, configure, write, read])
            .await;
    }
}

/// A user for [`RabbitMqCtl::add_user`].
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its password.
    pub password: &'a str,
    /// The virtual host in which the rights apply.
    pub vhost: &'a str,
    /// The names that it may declare and delete; "" is none, ".*" all.
    pub configure: &'a str,
    /// The names that it may publish to and bind.
    pub write: &'a str,
    /// The names that it may consume from.
    pub read: &'a str,
}
