//! Names the open batches whose latest jobs are gone: perhaps the job at their end can't be created.

use jobwire_core::Store;

use super::finding::Findings;
use crate::error::Error;

/// Maximum number of batches that are named.
const NAMED: usize = 5;
/// The number of batches of a page.
const PAGE: i64 = 1_000;
/// Maximum number of pages that are read.
const PAGES: usize = 10;

pub(super) async fn examine(store: &dyn Store, findings: &mut Findings) {
    let (mut over, mut after) = (Vec::new(), None);
    for _ in 0..PAGES {
        let page = match store.open_batches(after, PAGE).await {
            Ok(page) => page,
            Err(error) => return findings.error("batches", Error::Store(error)),
        };
        over.extend(page.over);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    for batch in over.iter().take(NAMED) {
        findings.remark(
            "batches",
            format!("batch {batch} seems to have no job left, and has not ended"),
            format!(
                "`jobwire batches show {batch}` counts its jobs. If it stays so while a node runs, the job \
                 at its end can't be created: the log of the leader says why, and it is tried again \
                 within ten minutes. To give it up: jobwire batches cancel {batch}"
            ),
        );
    }
    if over.len() > NAMED {
        findings.remark(
            "batches",
            format!("{} more seem to have no job left", over.len() - NAMED),
            "`jobwire batches list` lists the open ones",
        );
    }
}
