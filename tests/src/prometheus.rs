//! A private Prometheus that scrapes a test's nodes.

use crate::{Scratch, Server, eventually, http, need, port};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const START: Duration = Duration::from_secs(30);

/// A Prometheus that scrapes and evaluates rules every second.
#[derive(Debug)]
pub struct Prometheus {
    // Before the directory: fields drop in this order.
    _server: Server,
    _scratch: Scratch,
    port: u16,
}

impl Prometheus {
    /// Starts a Prometheus with these targets (`host:port`, scraped at `/metrics`) and these files
    /// of recording and alerting rules.
    ///
    /// # Panics
    /// If Prometheus is missing and cannot be installed, or does not start.
    pub async fn start(targets: &[String], rules: &[&Path]) -> Prometheus {
        let scratch = Scratch::new();
        let configuration = scratch.write("prometheus.yml", configuration(targets, rules));
        let port = port::free();
        let mut command = program("prometheus");
        command
            .current_dir(scratch.path())
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                scratch.join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=warn");
        let mut server = Server::start("Prometheus", command);
        let address = format!("127.0.0.1:{port}");
        eventually("Prometheus to be ready", START, || {
            server.assert_running();
            let ready = http::get(&address, "/-/ready");
            async { (ready.await.ok()?.status == 200).then_some(()) }
        })
        .await;
        Prometheus {
            _server: server,
            _scratch: scratch,
            port,
        }
    }

    /// Returns the address of its HTTP API.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Evaluates an expression now and returns `data.result`: for a vector, an array of `{"metric":
    /// {…}, "value": [time, "text"]}`.
    ///
    /// # Panics
    /// If the expression is wrong.
    pub async fn query(&self, promql: &str) -> Value {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("query", promql)
            .finish();
        let (address, path) = (self.address(), format!("/api/v1/query?{query}"));
        let response = eventually("Prometheus to answer", START, async || {
            http::get(&address, &path).await.ok()
        })
        .await;
        let body: Value = serde_json::from_str(&response.body)
            .unwrap_or_else(|error| panic!("Prometheus: {error}: {}", response.body));
        assert_eq!(
            body["status"], "success",
            "the query {promql} failed: {body}"
        );
        body["data"]["result"].clone()
    }
}

/// Checks a file of rules with `promtool`.
///
/// # Errors
/// The complaints of `promtool`.
///
/// # Panics
/// If `promtool` (of the Debian package `prometheus`) is missing.
pub fn check_rules(file: &Path) -> Result<(), String> {
    let output = program("promtool")
        .args(["check", "rules"])
        .arg(file)
        .output();
    let output = output.unwrap_or_else(|error| panic!("cannot start promtool: {error}"));
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(String::from_utf8_lossy(&said).into_owned())
}

fn program(name: &str) -> Command {
    Command::new(need::directory_of(name, "prometheus", Vec::new).join(name))
}

fn configuration(targets: &[String], rules: &[&Path]) -> String {
    let mut yaml =
        String::from("global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files:\n");
    for rules in rules {
        let rules = std::path::absolute(rules).unwrap_or_else(|_| rules.to_path_buf());
        let _ = writeln!(yaml, "  - {:?}", rules.display().to_string());
    }
    let _ = write!(
        yaml,
        "scrape_configs:\n  - job_name: jobwire\n    static_configs:\n      - targets: {targets:?}\n"
    );
    yaml
}
