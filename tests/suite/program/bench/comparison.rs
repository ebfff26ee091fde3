//! One iteration of the comparison kit, with the parts that need no other language: it starts its
//! servers, reads the output of Jobwire and pgbench, and prints its tables.

use std::time::Duration;

use jobwire_tests::{Program, Scratch, cargo, need};

use crate::docs;

/// The time for PostgreSQL, RabbitMQ and six runs of some hundred jobs.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::test]
async fn the_comparison_kit_measures_jobwire_and_the_limits_of_postgresql() {
    let home = Scratch::new();
    let python = need::directory_of("python3", "python3", Vec::new).join("python3");
    let jobwire = cargo::build("jobwire");
    let kit = Program::at(&python)
        .args([docs::root().join("benches/peers/run")])
        .args([
            "--jobs",
            "600",
            "--only",
            "jobwire,pgbench",
            "--workloads",
            "drain",
        ])
        .args(["--jobwire".as_ref(), jobwire.as_os_str()])
        .args(["--dir".as_ref(), home.path().as_os_str()])
        .args(["--scratch".as_ref(), home.path().as_os_str()]);
    let (status, lines) = kit.run(PATIENCE).await;
    let said = lines.join("\n");
    assert!(status.success(), "{status}: {said}");
    for row in [
        "Jobwire, RabbitMQ",
        "Jobwire, in-process, row locks",
        "lock, delete",
    ] {
        assert!(said.contains(row), "{row}: {said}");
    }
}
