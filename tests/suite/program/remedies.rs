//! The messages of the program name the remedy.

use jobwire_tests::Scratch;

use super::{fails, jobwire, succeeds};

#[tokio::test]
async fn a_wrong_file_is_told_with_line_field_and_remedy() {
    let home = Scratch::new();
    let _ = home.write("typ.jsonl", "{\"typ\":\"noop\"}\n");
    let _ = home.write("due.jsonl", "{\"type\":\"noop\",\"due\":1}\n");
    let periodic =
        |rest: &str| format!("[[periodic]]\nname = \"a\"\nschedule = \"R/PT1H\"\n{rest}");
    let _ = home.write("typ.toml", periodic("job = { typ = \"noop\" }\n"));
    let _ = home.write("due.toml", periodic("job = { type = \"noop\", due = 1 }\n"));
    let _ = home.write("job.toml", periodic(""));
    let _ = home.write("bad.toml", periodic("job == 1\n"));
    let replace = |file| ["jobs", "replace-timers", "--definition", "d", "--yes", file];
    let declare = |file| ["periodic", "declare", file, "--check"];
    succeeds(jobwire(&home, &["migrate", "up"])).await;
    let meant = "field `typ` is no field of a job; did you mean `type`?";
    for (arguments, part, is_of_enqueue) in [
        (&["enqueue", "typ.jsonl"][..], meant, true),
        (&["enqueue", "due.jsonl"], "--unknown-fields payload", true),
        (&replace("typ.jsonl"), meant, false),
        (&replace("due.jsonl"), "`due` is no field of a job", false),
        (&declare("typ.toml"), meant, false),
        (&declare("due.toml"), "`due` is no field of a job", false),
        (
            &declare("job.toml"),
            "missing field `job`; add it, for example `job = { type = \"noop\" }`",
            false,
        ),
        (&declare("bad.toml"), "line 4: this is not TOML", false),
    ] {
        let said = fails(jobwire(&home, arguments), 1).await;
        assert!(said.contains(part), "{arguments:?}: {part} in {said}");
        let names_options = said.contains("--type") || said.contains("--unknown-fields");
        assert!(is_of_enqueue || !names_options, "{arguments:?}: {said}");
    }
    let limit = ["config", "--type-limits", "http=100/1s/burst=20"];
    let said = fails(jobwire(&home, &limit), 2).await;
    assert!(said.contains("write `http=100/1s/burst:20`"), "{said}");
}

#[tokio::test]
async fn a_flag_of_another_command_is_told_with_that_command() {
    let home = Scratch::new();
    for (line, remedy) in [
        ("activate --all", "use `jobwire resume --all`"),
        (
            "resume --process-instance i",
            "use `jobwire activate --process-instance`",
        ),
        ("--tenant acme jobs list", "write it behind the command"),
        ("jobs list --tenant_like a", "write --tenant-like"),
        (
            "jobs list --min_priority 3",
            "the filter is --priority-at-least",
        ),
        (
            "jobs list --min-priority -3",
            "the filter is --priority-at-least",
        ),
        (
            "engine jobs retry --all --categories a",
            "the filter is --category",
        ),
        ("jobs list --lanes bulk", "the filter is --lane"),
        ("purge --tenants=acme --yes", "the filter is --tenant"),
        (
            "lanes list --tenants acme",
            "leave it out, or give it to the node",
        ),
        ("migrate up --lease 3s", "`jobwire run --lease`"),
        ("jobs list --tennant acme", "'--tenant'"),
        ("run --tennants acme", "'--tenants'"),
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let said = fails(jobwire(&home, &arguments), 2).await;
        assert!(said.contains(remedy), "{line}: {remedy} in {said}");
    }
    // A setting of a node may stand before the command that takes it, and `config` takes all.
    for line in ["--lanes bulk config", "config --lanes bulk"] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let said = succeeds(jobwire(&home, &arguments)).await;
        assert!(said.contains("flag --lanes"), "{line}: {said}");
    }
    // The page of the settings is generated.
    let page = succeeds(jobwire(&home, &["config", "--markdown"])).await;
    let path = crate::docs::root().join("docs/reference/settings.md");
    assert_eq!(
        page.trim_end(),
        std::fs::read_to_string(path).unwrap().trim_end()
    );
}
