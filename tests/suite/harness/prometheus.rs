use jobwire_tests::{Prometheus, Scratch, eventually, prometheus};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const RULES: &str = "
groups:
  - name: test
    rules:
      - alert: Answered
        expr: answer == 42
";

/// Serves one metric; returns the address.
async fn node() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let answer = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nanswer 42\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn it_scrapes_its_targets_and_fires_alerts() {
    let scratch = Scratch::new();
    let rules = scratch.write("rules.yml", RULES);
    let prometheus = Prometheus::start(&[node().await], &[&rules]).await;
    let deadline = Duration::from_secs(30);
    let answer = eventually("a scrape", deadline, async || {
        prometheus.query("answer").await.get(0).cloned()
    });
    assert_eq!(answer.await["value"][1], Value::from("42"));
    let alert = eventually("the alert", deadline, async || {
        prometheus
            .query("ALERTS{alertstate='firing'}")
            .await
            .get(0)
            .cloned()
    });
    assert_eq!(alert.await["metric"]["alertname"], Value::from("Answered"));
}

#[test]
fn rules_are_checked() {
    let scratch = Scratch::new();
    let good = scratch.write("good.yml", RULES);
    let bad = scratch.write("bad.yml", RULES.replace("== 42", "== == 42"));
    assert_eq!(prometheus::check_rules(&good), Ok(()));
    let complaint = prometheus::check_rules(&bad).expect_err("a complaint");
    assert!(complaint.contains("parse error"), "{complaint}");
}
