//! Names the types whose jobs wait for a permit of a limit: it may be the reason why jobs wait.

use jobwire_core::Store;
use jobwire_core::telemetry::plain;

use super::finding::Findings;
use crate::error::Error;
use crate::output;

/// Maximum number of types that are named.
const NAMED: i64 = 20;

pub(super) async fn examine(store: &dyn Store, findings: &mut Findings) {
    let found = match store.waiting_for_permits(NAMED).await {
        Ok(found) => found,
        Err(error) => return findings.error("limits", Error::Store(error)),
    };
    for of in found {
        let job_type = plain::one_line(&of.job_type, 200);
        let jobs = output::count(of.jobs.unsigned_abs(), "job");
        findings.remark(
            "limits",
            format!(
                "{jobs} of type `{job_type}` wait for a permit: the limit or the rate of their key is \
                 reached"
            ),
            "nothing to do if the jobs end, or the rate is right; a larger limit (setting \
             `type_limits`, `HandlerOptions::limit`) lets more of them run or start",
        );
    }
}
