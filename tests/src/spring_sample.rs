//! The sample for Spring (`examples/jvm`), compiled and run with the jars that `scripts/setup jvm`
//! fetched. It needs no Maven and no network.

use crate::jdbc::Jdbc;
use crate::shared::Space;
use crate::{Program, Scratch, kafka_jars};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Java and Spring take four seconds on two cores, and much longer on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// The compiled program.
#[derive(Debug)]
pub struct SpringSample {
    classes: Scratch,
    jars: PathBuf,
}

impl SpringSample {
    /// Compiles it. A warning is a failure.
    ///
    /// # Panics
    /// If it does not compile, or if Java or its jars are missing and cannot be installed.
    pub async fn compile() -> SpringSample {
        let jars = tokio::task::spawn_blocking(|| kafka_jars::fetch(&["jvm"]));
        let sample = SpringSample {
            jars: jars.await.expect("its failure is a panic, reported above"),
            classes: Scratch::new(),
        };
        let sources = source("java/shop");
        let sources = std::fs::read_dir(&sources)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", sources.display()));
        let javac = Program::at(&kafka_jars::java("javac", "default-jdk-headless"))
            .args(["-Xlint:all,-classfile,-processing", "-Werror", "-proc:none"])
            .args(["-parameters", "-encoding", "UTF-8", "--release", "17"])
            .args(["-cp".as_ref(), sample.jars.join("*").as_path()])
            .args(["-d".as_ref(), sample.classes.path()])
            .args(sources.flatten().map(|source| source.path()));
        let (status, said) = undisturbed(javac).run(DEADLINE).await;
        assert!(status.success(), "javac:\n{}", said.join("\n"));
        sample
    }

    /// Places these orders, each in its own transaction, and returns the output.
    ///
    /// # Panics
    /// If it fails.
    pub async fn place(&self, database: &str, broker: &Space, orders: &[String]) -> Vec<String> {
        let Jdbc {
            url,
            user,
            password,
            ..
        } = Jdbc::of(database);
        let java = Program::at(&kafka_jars::java("java", "default-jdk-headless"))
            .args(["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC"])
            .args(["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
            .args(["-cp".into(), self.class_path()])
            .args(["shop.Shop"])
            .args(orders)
            .env("SPRING_DATASOURCE_URL", url)
            .env("SPRING_DATASOURCE_USERNAME", user)
            .env("SPRING_DATASOURCE_PASSWORD", password)
            // The sample gives a hint up after seconds, which may be too soon on a busy machine.
            .args(["--spring.kafka.producer.properties.max.block.ms=60000"])
            .args(["--spring.kafka.producer.properties.delivery.timeout.ms=60000"])
            .args(["--spring.rabbitmq.connection-timeout=60s"])
            .in_directory(self.classes.path());
        let prefix = format!("--jobwire.prefix={}", broker.prefix);
        let java = match broker.url.strip_prefix("kafka://") {
            Some(servers) => java
                .args(["--jobwire.broker=kafka", &prefix])
                .env("SPRING_KAFKA_BOOTSTRAP_SERVERS", servers),
            None => java
                .args(["--jobwire.broker=rabbitmq", &prefix])
                .env("SPRING_RABBITMQ_ADDRESSES", &broker.url),
        };
        let (status, said) = undisturbed(java).run(DEADLINE).await;
        assert!(status.success(), "the sample:\n{}", said.join("\n"));
        said
    }

    fn class_path(&self) -> OsString {
        let places = [
            self.classes.path().to_owned(),
            source("resources"),
            self.jars.join("*"),
        ];
        std::env::join_paths(places).expect("no path has a colon in it")
    }
}

fn source(part: &str) -> PathBuf {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/jvm/src/main");
    Path::new(sources).join(part)
}

/// Clears Java's option variables: Java would apply and print options meant for other programs.
fn undisturbed(program: Program) -> Program {
    program
        .env("JAVA_TOOL_OPTIONS", "")
        .env("JDK_JAVA_OPTIONS", "")
}
