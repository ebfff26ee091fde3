//! Bulk operations on a running node.

use std::time::Duration;

use jobwire_core::store::Change;
use jobwire_core::{BULK_TYPE, BulkOperation, JobQuery, JobState, NewJob};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};
use serde_json::json;

use super::bed::{Bed, noting};
use super::world::{SqlBench, World};

/// More than two pages of an operation.
const ITEMS: usize = 1_200;

/// Creates the job of a bulk operation, and waits for its end.
async fn until_operated<S: SqlBench>(bed: &Bed<S>, operation: BulkOperation) {
    let id = bed.create(vec![operation.job().unwrap()]).await[0];
    bed.until_done(id).await;
}

/// Creates dead letters of a type.
async fn dead_letters<S: SqlBench>(bed: &Bed<S>, jobs: Vec<NewJob>) -> Vec<jobwire_core::JobId> {
    let ids = bed.create(jobs).await;
    let bury = Change::MakeDeadLetter("no luck".to_owned());
    for ids in ids.chunks(1_000) {
        bed.client.change(ids, &bury).await.unwrap();
    }
    ids
}

pub(super) async fn a_bulk_operation_acts_on_all_jobs_that_match_and_on_no_other<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let item = |n: usize| NewJob::of("item", &n.to_string());
    dead_letters(&bed, (0..ITEMS).map(item).collect()).await;
    let other = dead_letters(&bed, vec![NewJob::of("other", &1)]).await[0];
    let node = bed.node(quick()).handler("item", noting(&bed.notes));
    let node = node.start().await.unwrap();
    let items = JobQuery::default().job_type("item");
    until_operated(&bed, BulkOperation::retry(items, 2)).await;
    bed.until_left(1).await;
    assert_eq!(bed.notes.all().len(), ITEMS);
    let left = w.view(other).await.unwrap();
    assert_eq!(left.state, JobState::DeadLetter);
    // A change and a deletion of two pages.
    let waits = |n: u64| NewJob::of("later", &n).delay(Duration::from_secs(3_600));
    bed.create((0..600).map(waits).collect()).await;
    let later = || JobQuery::default().job_type("later");
    until_operated(&bed, BulkOperation::change(later(), Change::SetPriority(7))).await;
    let changed = bed.client.list(&later().limit(1_000)).await.unwrap();
    assert_eq!(changed.len(), 600);
    assert!(changed.iter().all(|job| job.priority == 7));
    until_operated(&bed, BulkOperation::delete(later())).await;
    let only = bed.client.list(&JobQuery::default()).await.unwrap();
    let [only] = &only[..] else {
        panic!("one job: {only:?}");
    };
    assert_eq!((only.id, only.priority), (other, left.priority));
    // An operation on all jobs leaves itself out, and one that no program knows becomes a dead letter.
    until_operated(&bed, BulkOperation::cancel(JobQuery::default())).await;
    bed.until_left(0).await;
    let unknown = json!({ "action": "delete", "query": { "other": 1 } });
    let unknown = bed.create(vec![NewJob::of(BULK_TYPE, &unknown)]).await[0];
    eventually("a dead letter", SOON, async || {
        let view = w.view(unknown).await?;
        (view.state == JobState::DeadLetter).then_some(())
    })
    .await;
    node.stop().await;
}
