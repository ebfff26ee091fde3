//! `jobwire purge`, and tags of `enqueue` and `jobs list`.

use serde_json::Value;

use super::home::{Base, Home};
use super::{all, fails, jobwire, lines, succeeds};

pub(super) async fn a_tenant_is_purged_after_a_dry_run_and_tags_select_jobs<S: Base>(
    home: &Home<S>,
) {
    let store = &home.store;
    let tagged = r#"{"type":"noop","tenant":"acme","tags":["red","big"]}"#;
    let other = r#"{"type":"noop","tenant":"other","tags":["red"]}"#;
    for (line, count) in [(tagged, 3), (other, 2)] {
        succeeds(jobwire(home, &["enqueue", &lines(home, line, count)])).await;
    }
    let list = |arguments: &[&str]| {
        let arguments = [&["jobs", "list", "--json"], arguments].concat();
        succeeds(jobwire(home, &arguments).env("JOBWIRE_LOG", "off"))
    };
    let count = |said: String| -> usize {
        let listed: Value = serde_json::from_str(&said).unwrap();
        listed.as_array().unwrap().len()
    };
    assert_eq!(count(list(&["--tag", "red"]).await), 5);
    assert_eq!(count(list(&["--tag", "red", "--tag", "big"]).await), 3);
    assert_eq!(count(list(&["--tag", "blue"]).await), 0);

    let said = fails(jobwire(home, &["purge", "--tenant", "acme"]), 2).await;
    assert!(said.contains("3 rows would be deleted"), "{said}");
    let nightly = "[[periodic]]\nname = \"nightly\"\nschedule = \"0 2 * * *\"\n\
                   job = { type = \"noop\", tenant = \"acme\" }\n";
    let nightly = home.write("periodic.toml", nightly).display().to_string();
    succeeds(jobwire(home, &["periodic", "declare", &nightly])).await;
    let dry = ["purge", "--tenant", "acme", "--dry-run"];
    let said = succeeds(jobwire(home, &dry)).await;
    assert!(said.contains("nothing was deleted"), "{said}");
    let named = "this periodic job names the scope and goes on creating its jobs; a purge leaves it \
                 (`jobwire periodic remove`):\nnightly\n";
    assert!(said.contains(named), "{said}");
    assert_eq!(all(store).await.len(), 5);
    let purge = ["purge", "--tenant", "acme", "--yes", "--json"];
    let said = succeeds(jobwire(home, &purge).env("JOBWIRE_LOG", "off")).await;
    let purged: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(purged["rows"]["job"], 3, "{said}");
    assert_eq!(purged["kept"]["schedules"][0], "nightly", "{said}");
    let left = all(store).await;
    assert!(
        left.len() == 2
            && left
                .iter()
                .all(|job| job.tenant.as_deref() == Some("other"))
    );
    let said = fails(jobwire(home, &["purge", "--instance", "", "--yes"]), 1).await;
    assert!(said.contains("is empty"), "{said}");
}
