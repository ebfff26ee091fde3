//! How the program reads its settings.

use jobwire_core::Store;
use jobwire_tests::Scratch;

use super::{all, fails, jobwire, lines, store, succeeds};

#[tokio::test]
async fn a_flag_beats_the_environment_and_the_environment_beats_the_file() {
    let home = Scratch::new();
    let _ = home.write(
        "jobwire.toml",
        "concurrency = 5\nlease = \"5s\"\nlanes = [\"a\", \"b\"]\n",
    );
    let said = succeeds(
        jobwire(&home, &["config", "--lease", "PT7S"])
            .env("JOBWIRE_CONCURRENCY", "6")
            .env("JOBWIRE_LEASE", "6s"),
    )
    .await;
    let line = |key: &str| -> Vec<String> {
        let line = said
            .lines()
            .find(|l| l.starts_with(key))
            .unwrap_or_default();
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(line("lease"), ["lease", "7s", "flag", "--lease"]);
    assert_eq!(
        line("concurrency"),
        [
            "concurrency",
            "6",
            "environment",
            "variable",
            "JOBWIRE_CONCURRENCY"
        ]
    );
    assert_eq!(line("lanes"), ["lanes", "a,b", "jobwire.toml:3"]);
    assert_eq!(line("sweep_interval"), ["sweep_interval", "10s", "default"]);
}

/// `--tenants` looks like a filter. It is a setting, and a command that ignored it would delete the jobs
/// of all tenants.
#[tokio::test]
async fn a_setting_of_a_node_is_refused_where_it_looks_like_a_filter() {
    let home = Scratch::new();
    let file = lines(&home, r#"{"type":"noop","tenant":"other"}"#, 2);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    for (arguments, filter) in [
        (
            &["jobs", "delete", "--all", "--tenants", "acme", "--yes"][..],
            "the filter is --tenant",
        ),
        (
            &["--tenants", "acme", "jobs", "delete", "--all", "--yes"],
            "the filter is --tenant",
        ),
        (
            &["jobs", "cancel", "--all", "--max-priority", "-1", "--yes"],
            "the filter is --priority-at-most",
        ),
        (
            &["pause", "--all", "--tenants", "acme"],
            "use `jobwire suspend --tenant`",
        ),
    ] {
        let said = fails(jobwire(&home, arguments), 2).await;
        assert!(
            said.contains("is a setting of a node"),
            "{arguments:?}: {said}"
        );
        assert!(said.contains(filter), "{arguments:?}: {said}");
    }
    let store = store(&home).await;
    assert_eq!(all(&store).await.len(), 2);
    assert!(store.suspensions().await.unwrap().is_empty());
    // One file and one environment serve all commands.
    let _ = home.write("jobwire.toml", "tenants = [\"acme\"]\n");
    let list = jobwire(&home, &["jobs", "list"]).env("JOBWIRE_MIN_PRIORITY", "7");
    let said = succeeds(list).await;
    assert!(said.contains("2 jobs"), "{said}");
}

#[tokio::test]
async fn a_wrong_file_of_calendars_is_told_as_such() {
    let home = Scratch::new();
    let _ = home.write("bad.toml", "[[calendar]]\nname = \"a\"\nhours = {}\n");
    let file = lines(&home, r#"{"type":"noop"}"#, 1);
    let mistake = "calendar 1: missing field `time_zone`; add it, for example";
    let doctor = fails(jobwire(&home, &["doctor", "--calendars", "bad.toml"]), 1).await;
    assert!(doctor.contains("WRONG  calendars: "), "{doctor}");
    assert!(doctor.contains("remark database: "), "{doctor}");
    let enqueue = ["enqueue", &file, "--calendars", "bad.toml"];
    let enqueue = fails(jobwire(&home, &enqueue), 1).await;
    for said in [doctor, enqueue] {
        assert!(said.contains("business calendars in bad.toml"), "{said}");
        assert!(said.contains(mistake), "{said}");
        assert!(!said.contains("nothing was changed"), "{said}");
    }
}

#[tokio::test]
async fn the_file_can_be_named_before_or_behind_the_command() {
    let home = Scratch::new();
    let _ = home.write(
        "other.toml",
        "database_url = \"postgres://me:secret@db/jobs\"\n",
    );
    for arguments in [
        ["--config", "other.toml", "config"],
        ["config", "--config", "other.toml"],
    ] {
        let said = succeeds(jobwire(&home, &arguments)).await;
        assert!(
            said.contains("postgres://me:***@db/jobs") && !said.contains("secret"),
            "{said}"
        );
    }
    let said = succeeds(jobwire(&home, &["config"]).env("JOBWIRE_CONFIG", "other.toml")).await;
    assert!(said.contains("other.toml:1"), "{said}");
    let said = fails(jobwire(&home, &["run", "--config", "missing.toml"]), 2).await;
    assert!(
        said.contains("setting `config` is `missing.toml`") && !said.contains("missing.toml:"),
        "{said}"
    );
}

#[tokio::test]
async fn a_missing_file_is_told_with_its_setting_or_argument_and_the_remedy() {
    let home = Scratch::new();
    for (arguments, said) in [
        (
            &["jobs", "list", "--calendars", "no.toml"][..],
            "flag --calendars: setting `calendars` is `no.toml`: the file can't be read: No such file or \
             directory; correct the path (--calendars, JOBWIRE_CALENDARS), or leave the setting out",
        ),
        (
            &["run", "--periodic-jobs", "no.toml"],
            "setting `periodic_jobs` is `no.toml`: the file can't be read: No such file or directory; \
             correct the path (--periodic-jobs, JOBWIRE_PERIODIC_JOBS)",
        ),
        (
            &["enqueue", "no.jsonl"],
            "can't read no.jsonl: No such file or directory; give the path of a readable file, or - \
             for standard input",
        ),
    ] {
        let answer = fails(jobwire(&home, arguments), 2).await;
        assert!(answer.contains(said), "{said} in {answer}");
    }
}

#[tokio::test]
async fn intervals_of_zero_or_below_are_refused_before_anything_starts() {
    let home = Scratch::new();
    let said = fails(
        jobwire(&home, &["run", "--sweep-interval", "0s", "--lease=-3s"])
            .env("JOBWIRE_SHUTDOWN_TIMEOUT", "PT0S")
            .env("RUST_BACKTRACE", "1"),
        2,
    )
    .await;
    for part in [
        "3 settings are wrong",
        "flag --sweep-interval: setting `sweep_interval` is `0s`",
        "flag --lease: setting `lease` is `-3s`",
        "environment variable JOBWIRE_SHUTDOWN_TIMEOUT",
        "write for example `30s`",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!home.join("jobwire.db").exists());
}

#[tokio::test]
async fn what_is_no_setting_is_an_error_with_a_suggestion() {
    let home = Scratch::new();
    let said = fails(
        jobwire(&home, &["run"]).env("JOBWIRE_BROKER", "amqp://x"),
        2,
    )
    .await;
    assert!(said.contains("did you mean JOBWIRE_BROKER_URL?"), "{said}");
    let said = fails(jobwire(&home, &["run", "--concurency", "3"]), 2).await;
    assert!(said.contains("--concurrency"), "{said}");
    let said = fails(jobwire(&home, &["run", "--broker", "nats://n:4222"]), 2).await;
    assert!(said.contains("is not a supported broker"), "{said}");
    let said = fails(
        jobwire(&home, &["run", "--database", "mysql://me:secret@db/x"]),
        2,
    )
    .await;
    assert!(
        said.contains("is not a supported database") && !said.contains("secret"),
        "{said}"
    );
}
