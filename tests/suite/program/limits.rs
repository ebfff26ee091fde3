//! Limits by the keys of the setting `type_limits`.

use jobwire_tests::eventually;
use serde_json::Value;

use super::home::{Base, Home};
use super::{SOON, jobwire, lines, start, succeeds};

/// Two jobs of one customer and one of another: one of each customer runs.
pub(super) async fn a_node_counts_the_jobs_of_each_custom_value_alone<S: Base>(home: &Home<S>) {
    let of = |customer: &str| {
        format!(
            r#"{{"type":"sleep","payload":{{"ms":3600000}},"custom_values":{{"customer":"{customer}"}}}}"#
        )
    };
    for (customer, count) in [("a", 2), ("b", 1)] {
        let file = lines(home, &of(customer), count);
        succeeds(jobwire(home, &["enqueue", &file])).await;
    }
    let run = jobwire(home, &["run", "--http", "127.0.0.1:0"]);
    let limit = "sleep=1/value:customer/named:shop";
    let (_node, _) = start(run.env("JOBWIRE_TYPE_LIMITS", limit)).await;
    let waits = eventually("two jobs to run, and one to wait", SOON, async || {
        let list = jobwire(home, &["jobs", "list", "--json"]).env("JOBWIRE_LOG", "off");
        let listed: Vec<Value> = serde_json::from_str(&succeeds(list).await).ok()?;
        let held = listed.iter().filter(|job| !job["lock_owner"].is_null());
        let waits = listed.iter().find(|job| !job["waits_for_permit"].is_null());
        (held.count() == 2).then_some(waits?["waits_for_permit"].clone())
    })
    .await;
    assert_eq!(
        (&waits["limit"], &waits["key"]),
        (&"shop".into(), &"a".into())
    );
}
