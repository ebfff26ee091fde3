//! Names what is suspended or paused: it may be the reason why jobs wait.

use jobwire_core::Store;
use jobwire_core::telemetry::plain;

use super::finding::Findings;
use crate::error::Error;
use crate::output;

/// Maximum number of suspensions and pauses that are named.
const NAMED: usize = 20;

pub(super) async fn examine(store: &dyn Store, findings: &mut Findings) {
    let found = match store.suspensions().await {
        Ok(found) => found,
        Err(error) => return findings.error("suspensions", Error::Store(error)),
    };
    if found.is_empty() {
        return findings.fine("suspensions", "nothing is suspended or paused");
    }
    for view in found.iter().take(NAMED) {
        let jobs = (view.moved + view.waiting).unsigned_abs();
        let end = match view.gate.state() {
            "paused" => "resume",
            _ => "activate",
        };
        let scope = match (view.gate.scope(), view.gate.value()) {
            (scope, "") => format!("--{scope}"),
            (scope, value) => output::shell_option(scope, value),
        };
        let of = view.gate.definition().map_or_else(String::new, |name| {
            output::shell_option("definition", name) + " "
        });
        let tenant = view.gate.tenant().map_or_else(String::new, |name| {
            " ".to_owned() + &output::shell_option("tenant", name)
        });
        findings.remark(
            "suspensions",
            format!(
                "{} since {}: {} waiting",
                plain::one_line(&view.gate.to_string(), 500),
                view.since
                    .to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
                output::count(jobs, "job")
            ),
            format!("to end it: jobwire {end} {of}{scope}{tenant}"),
        );
    }
    if found.len() > NAMED {
        findings.remark(
            "suspensions",
            format!("{} more", found.len() - NAMED),
            "`jobwire suspensions` lists them all",
        );
    }
}
