use std::collections::HashSet;
use std::time::Duration;

use chrono::Utc;
use jobwire_core::job::LockedJob;
use jobwire_core::producer::batches::cancel;
use jobwire_core::store::{Change, Handoff, SuspensionScope};
use jobwire_core::{
    Batch, BatchEnd, BatchId, BatchState, BatchView, Client, CommitHook, Hint, JobId, JobQuery,
    JobState, NewJob, PgStore, Store, StoreError,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick, waiting};
use rand::Rng;

use super::bed::{Bed, noting};
use super::periodic::refuse_as_if_the_disk_were_full;
use super::world::{SqlBench, World, done, give_up, node, retry_after, take, work};

const DAY: Duration = Duration::from_secs(86_400);

/// Returns the job at the end of the batches here. No node locks it by chance.
fn at_end() -> NewJob {
    NewJob::of("at-end", &1)
}

fn client<S: SqlBench>(w: &World<S>) -> Client<S> {
    Client::without_hints(w.store.clone())
}

async fn create<S: SqlBench>(w: &World<S>, batch: Batch) -> BatchId {
    client(w).create_batch(batch).await.unwrap()
}

/// Creates a batch of that many jobs. Returns their hints, too.
async fn batch_of<S: SqlBench>(w: &World<S>, jobs: usize) -> (BatchId, Vec<Hint>) {
    let jobs: Vec<NewJob> = (0..jobs).map(|_| work()).collect();
    let hints = jobs.iter().map(|job| Hint::new(job.id())).collect();
    let batch = create(w, Batch::named("b").jobs(jobs).then(at_end())).await;
    (batch, hints)
}

async fn view<S: SqlBench>(w: &World<S>, batch: BatchId) -> BatchView {
    w.store.batch(batch).await.unwrap().expect("the batch")
}

/// Returns the account that the job at the end has.
async fn account<S: SqlBench>(w: &World<S>, batch: BatchId) -> BatchEnd {
    let job = view(w, batch).await.callback;
    let (_, job, _) = w.store.get(job).await.unwrap().expect("the job at the end");
    job.batch_end().expect("its account")
}

/// Asks for the end of the batch as the leader does. Returns whether it has ended just now.
async fn ends<S: SqlBench>(w: &World<S>, batch: BatchId) -> bool {
    let found = w.store.open_batches(None, 100).await.unwrap();
    let ended = w.store.end_batch(batch, &[]).await.unwrap();
    assert_eq!(found.over.contains(&batch), ended.is_some());
    ended.is_some()
}

async fn complete<S: SqlBench>(w: &World<S>, hint: &Hint) {
    let worker = node();
    let job = w.hold(worker, hint).await;
    w.complete(worker, &job, &Handoff::Hint).await;
}

async fn kill<S: SqlBench>(w: &World<S>, hint: &Hint) {
    let worker = node();
    let job = w.hold(worker, hint).await;
    w.fail(worker, give_up(&job)).await;
}

pub(super) async fn a_member_keeps_its_batch_open_in_every_table<S: SqlBench>(w: &World<S>) {
    let (batch, hints) = batch_of(w, 2).await;
    assert!(!ends(w, batch).await);
    complete(w, &hints[0]).await;
    assert!(!ends(w, batch).await);
    let worker = node();
    let job = w.hold(worker, &hints[1]).await;
    assert_eq!(job.job.batch(), Some(batch));
    assert!(!ends(w, batch).await, "it runs");
    w.fail(worker, retry_after(&job, DAY)).await;
    assert!(!ends(w, batch).await, "it waits for its retry");
    let scope = SuspensionScope::Type("work".to_owned());
    w.store.suspend(&scope).await.unwrap();
    assert_eq!(w.state(job.job.id).await, Some(JobState::Suspended));
    assert!(!ends(w, batch).await);
    w.store.activate(&scope).await.unwrap();
    let left = Change::MakeDeadLetter("enough".to_owned());
    w.store.change_many(&[job.job.id], &left).await.unwrap();
    assert!(!ends(w, batch).await, "a dead letter may be retried");
    let counted = view(w, batch).await;
    assert_eq!(
        (counted.members, counted.ended, counted.dead_letters),
        (2, 1, 1)
    );
    w.store.retry(job.job.id, 1).await.unwrap();
    complete(w, &hints[1]).await;
    let left = [job.job.id, hints[0].id];
    let ended = w.store.end_batch(batch, &left).await.unwrap().unwrap();
    assert_eq!(ended.ready.len(), 1, "the job at the end is to be hinted");
    assert_eq!(ended.ready[0].hint.id, view(w, batch).await.callback);
    let account = account(w, batch).await;
    assert_eq!((account.members, account.dead_letters), (2, 0));
    assert_eq!((account.batch, &*account.name), (batch, "b"));
    assert!(!ends(w, batch).await, "once");
    let ended = view(w, batch).await;
    assert_eq!(
        (ended.state, ended.members, ended.ended),
        (BatchState::Ended, 2, 2)
    );
    assert_eq!(w.rows("batch_member").await, 0);
    assert_eq!(w.rows("job").await, 1);
}

/// Each round, two nodes finish the last two members at the same moment.
pub(super) async fn of_two_ends_at_once_one_creates_the_job<S: SqlBench>(w: &World<S>) {
    for round in 0..15 {
        let (batch, hints) = batch_of(w, 2).await;
        let finish = |hint: Hint| {
            let store = w.store.clone();
            async move {
                let world = World::over(store);
                complete(&world, &hint).await;
                loop {
                    match world.store.end_batch(batch, &[hint.id]).await {
                        // The row of the batch stayed locked on a busy machine. A node tries again, too.
                        Err(error) if error.is_conflict() => {}
                        ended => break ended.unwrap(),
                    }
                }
            }
        };
        let both = hints.into_iter().map(|hint| tokio::spawn(finish(hint)));
        let mut created = 0;
        for one in both.collect::<Vec<_>>() {
            created += usize::from(one.await.unwrap().is_some());
        }
        assert_eq!(created, 1, "round {round}");
        assert_eq!(account(w, batch).await.members, 2);
    }
}

pub(super) async fn dead_letters_count_as_ended_if_the_batch_says_so<S: SqlBench>(w: &World<S>) {
    let jobs: Vec<NewJob> = (0..3).map(|_| work()).collect();
    let hints: Vec<Hint> = jobs.iter().map(|job| Hint::new(job.id())).collect();
    let batch = Batch::named("b")
        .jobs(jobs)
        .then(at_end())
        .or_dead_letters();
    let batch = create(w, batch).await;
    kill(w, &hints[0]).await;
    complete(w, &hints[1]).await;
    assert!(!ends(w, batch).await);
    kill(w, &hints[2]).await;
    assert!(ends(w, batch).await);
    let end = account(w, batch).await;
    assert_eq!((end.members, end.dead_letters), (3, 2));
    // A member that is revived after the end changes nothing, and can't add others.
    w.store.retry(hints[0].id, 1).await.unwrap();
    complete(w, &hints[0]).await;
    assert!(
        w.store
            .end_batch(batch, &[hints[0].id])
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(view(w, batch).await.dead_letters, 2);
}

pub(super) async fn a_member_that_another_program_deleted_is_noticed<S: SqlBench>(w: &World<S>) {
    let (batch, hints) = batch_of(w, 2).await;
    let delete = format!("DELETE FROM {{s}}job WHERE id = '{}'", hints[0].id);
    assert_eq!(w.store.execute(&delete).await, 1);
    assert!(!ends(w, batch).await);
    w.store.delete(hints[1].id).await.unwrap();
    let counted = view(w, batch).await;
    assert_eq!((counted.members, counted.ended), (2, 2));
    assert!(ends(w, batch).await);
    assert_eq!(account(w, batch).await.members, 2);
}

pub(super) async fn a_batch_grows_until_its_end<S: SqlBench>(w: &World<S>) {
    let (batch, hints) = batch_of(w, 1).await;
    complete(w, &hints[0]).await;
    let later = w.one(work().batch(batch)).await;
    assert!(!ends(w, batch).await);
    let delayed = w.create(vec![work().batch(batch).delay(DAY)]).await;
    assert!(delayed.timer.is_some());
    complete(w, &later).await;
    assert!(!ends(w, batch).await, "a timer is a member, too");
    let members = JobQuery::default().batch(batch);
    let timer = w.store.find(&members).await.unwrap().remove(0);
    assert_eq!(w.store.count(&members).await.unwrap(), 1);
    w.store.delete(timer.id).await.unwrap();
    assert!(ends(w, batch).await);
    assert_eq!(account(w, batch).await.members, 3);
    let too_late = client(w)
        .create_many(vec![work(), work().batch(batch)])
        .await;
    assert!(matches!(too_late, Err(StoreError::BatchEnded(of)) if of == batch));
    let unknown = BatchId::generate();
    let too_late = client(w).create(work().batch(unknown)).await;
    assert!(matches!(too_late, Err(StoreError::BatchEnded(of)) if of == unknown));
    assert_eq!(w.rows("job").await, 1, "only the job at the end");
    assert_eq!(w.rows("batch_member").await, 0);
}

#[tokio::test]
async fn a_batch_does_not_end_beside_a_transaction_that_adds_to_it() {
    let w = &World::<PgStore>::open().await;
    let (batch, hints) = batch_of(w, 1).await;
    let client = client(w);
    let mut adds = client.begin().await.unwrap();
    let added = adds.create(work().batch(batch)).await.unwrap();
    complete(w, &hints[0]).await;
    let store = w.store.clone();
    let left = hints[0].id;
    let end = tokio::spawn(async move { store.end_batch(batch, &[left]).await });
    // On a slow machine its wait may be over before this look.
    eventually("the end to wait, or to be over", SOON, async || {
        (end.is_finished() || waiting(&w.store).await >= 1).then_some(())
    })
    .await;
    adds.commit().await.unwrap();
    match end.await.unwrap() {
        Ok(ended) => assert!(ended.is_none()),
        // It waited for a quarter of a second, and would look again.
        Err(error) => assert!(error.is_conflict(), "{error}"),
    }
    w.store.delete(added).await.unwrap();
    assert!(ends(w, batch).await);
}

pub(super) async fn a_batch_of_a_rollback_is_gone<S: SqlBench>(w: &World<S>) {
    let client = client(w);
    let mut tx = client.begin().await.unwrap();
    let batch = Batch::named("b").job(work()).then(at_end());
    let gone = tx.create_batch(batch).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(w.store.batch(gone).await.unwrap(), None);
    assert_eq!(
        (w.rows("batch").await, w.rows("batch_member").await),
        (0, 0)
    );
    for wrong in [
        Batch::named("").job(work()),
        Batch::named("b").job(work().repeat_text("R/PT1H")),
        Batch::named("b").then(NewJob::of("", &1)),
        Batch::named("b").job(work().batch(BatchId::generate())),
    ] {
        let refused = client.create_batch(wrong).await;
        assert!(
            matches!(refused, Err(StoreError::InvalidJob { .. })),
            "{refused:?}"
        );
    }
    assert_eq!((w.rows("batch").await, w.rows("job").await), (0, 0));
    let mut own = w.store.begin().await.unwrap();
    let mut hook = client.hook();
    let batch = Batch::named("own").job(work());
    let created = hook.create_batch(&mut own, batch).await.unwrap();
    hook.commit(own).await.unwrap();
    assert_eq!(view(w, created).await.members, 1);
}

/// The job at the end of the inner batch is a member of the outer one.
pub(super) async fn a_batch_may_be_a_member_of_another<S: SqlBench>(w: &World<S>) {
    let outer = create(w, Batch::named("outer").job(work()).then(at_end())).await;
    let first = w
        .store
        .find(&JobQuery::default())
        .await
        .unwrap()
        .remove(0)
        .id;
    let member = work();
    let inner = Batch::named("inner")
        .job(member.clone())
        .then(work().batch(outer));
    let inner = create(w, inner).await;
    complete(w, &Hint::new(first)).await;
    assert!(!ends(w, outer).await, "the inner batch is open");
    complete(w, &Hint::new(member.id())).await;
    assert!(!ends(w, outer).await);
    assert!(ends(w, inner).await);
    assert!(
        !ends(w, outer).await,
        "the job at the end of the inner batch is there"
    );
    let last = view(w, inner).await.callback;
    let worker = node();
    let job = w.hold(worker, &Hint::new(last)).await;
    assert_eq!(job.job.batch(), Some(outer));
    assert_eq!(job.job.batch_end().unwrap().batch, inner);
    w.complete(worker, &job, &Handoff::Hint).await;
    assert!(ends(w, outer).await);
    assert_eq!(account(w, outer).await.members, 2);
    let late = Batch::named("late").then(work().batch(outer));
    let late = client(w).create_batch(late).await;
    assert!(matches!(late, Err(StoreError::BatchEnded(_))));
}

pub(super) async fn a_cancelled_batch_loses_its_members_and_creates_no_job<S: SqlBench>(
    w: &World<S>,
) {
    let (batch, hints) = batch_of(w, 700).await;
    let member = work();
    let inner = Batch::named("inner")
        .job(member.clone())
        .then(work().batch(batch));
    let inner = create(w, inner).await;
    let bystander = w.one(work()).await;
    complete(w, &hints[0]).await;
    let worker = node();
    let running = w.hold(worker, &hints[1]).await;
    let hook = CommitHook::disconnected();
    let cancelled = cancel(&w.store, &hook, batch).await.unwrap();
    assert!(cancelled.changed);
    assert_eq!(cancelled.running, [running.job.id]);
    assert_eq!(cancelled.deleted.len(), 699);
    assert!(cancelled.refused.is_empty());
    for of in [batch, inner] {
        assert_eq!(view(w, of).await.state, BatchState::Cancelled);
        assert!(!ends(w, of).await);
    }
    w.complete(worker, &running, &Handoff::Hint).await;
    let left = w.store.find(&JobQuery::default()).await.unwrap();
    let left: Vec<JobId> = left.into_iter().map(|job| job.id).collect();
    assert_eq!(left, [bystander.id]);
    let late = client(w).create(work().batch(batch)).await;
    assert!(matches!(late, Err(StoreError::BatchEnded(_))));
    let again = cancel(&w.store, &hook, batch).await.unwrap();
    assert!(!again.changed && again.deleted.is_empty(), "{again:?}");
    let counted = view(w, batch).await;
    assert_eq!((counted.members, counted.ended), (701, 701));
    w.store.prune_history(Duration::ZERO, 1_000).await.unwrap();
    w.store.prune_history(Duration::ZERO, 1_000).await.unwrap();
    assert_eq!(
        (w.rows("batch").await, w.rows("batch_member").await),
        (0, 0)
    );
}

/// The first call ended after it had cancelled the inner batch, and before it deleted a job.
pub(super) async fn an_interrupted_cancel_finds_the_batches_inside_again<S: SqlBench>(
    w: &World<S>,
) {
    let outer = create(w, Batch::named("outer").job(work()).then(at_end())).await;
    let inner = Batch::named("inner")
        .jobs([work(), work()])
        .then(at_end().batch(outer));
    let inner = create(w, inner).await;
    // By SQL, the outer one is inside the inner one, too.
    let circle = format!(
        "INSERT INTO {{s}}batch_member (batch_id, job_id) SELECT '{inner}', callback_id FROM {{s}}batch WHERE id = '{outer}'"
    );
    assert_eq!(w.store.execute(&circle).await, 1);
    for of in [outer, inner] {
        assert!(w.store.cancel_batch(of).await.unwrap());
    }
    let hook = CommitHook::disconnected();
    let cancelled = cancel(&w.store, &hook, outer).await.unwrap();
    assert_eq!(cancelled.deleted.len(), 3);
    assert!(!cancelled.changed);
    assert_eq!((w.rows("job").await, w.rows("batch_member").await), (0, 0));
}

/// The newest members are gone, and the oldest is present.
pub(super) async fn an_old_member_keeps_a_large_batch_open<S: SqlBench>(w: &World<S>) {
    let (batch, hints) = batch_of(w, 150).await;
    let oldest = hints.iter().map(|hint| hint.id).min().unwrap();
    let delete = format!("DELETE FROM {{s}}job WHERE id <> '{oldest}'");
    assert_eq!(w.store.execute(&delete).await, 149);
    let found = w.store.open_batches(None, 100).await.unwrap();
    assert_eq!(found.over, [batch], "perhaps over");
    assert!(w.store.end_batch(batch, &[]).await.unwrap().is_none());
    // The leader forgets those that are gone, and does not ask again.
    let members = w.store.batch_members(batch, None, 5_000).await.unwrap();
    let forgotten = w.store.forget_batch_members(batch, &members.jobs).await;
    assert!(forgotten.unwrap(), "the oldest keeps it open");
    assert_eq!(w.rows("batch_member").await, 1);
    assert!(!ends(w, batch).await);
    w.store.delete(oldest).await.unwrap();
    assert!(ends(w, batch).await);
    assert_eq!(account(w, batch).await.members, 150);
}

/// There are more dead letters than the transaction of the end reads.
pub(super) async fn a_batch_of_many_dead_letters_ends_in_slices<S: SqlBench>(w: &World<S>) {
    const MEMBERS: usize = 5_200;
    let jobs: Vec<NewJob> = (0..MEMBERS).map(|_| work()).collect();
    let ids: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
    let batch = Batch::named("b").jobs(jobs).or_dead_letters();
    let batch = create(w, batch.then(at_end())).await;
    let bury = async |ids: &[JobId]| {
        let dead = Change::MakeDeadLetter("no luck".to_owned());
        w.store.change_many(ids, &dead).await.unwrap();
    };
    for some in ids.chunks(1_000) {
        bury(some).await;
    }
    let found = w.store.open_batches(None, 100).await.unwrap();
    assert_eq!((found.over, found.number), (vec![batch], 1));
    let end = async || w.store.end_batch(batch, &[]).await.unwrap();
    assert!(end().await.is_none(), "its members are too many");

    let page = async |after| {
        let page = w.store.batch_members(batch, after, 5_000).await;
        page.unwrap().jobs
    };
    let (first, last) = {
        let first = page(None).await;
        let after = first.last().copied();
        (first, page(after).await)
    };
    assert_eq!((first.len(), last.len()), (5_000, 200));
    for members in [&first, &last] {
        let keep = w.store.forget_batch_members(batch, members).await;
        assert!(!keep.unwrap(), "dead letters do not keep it open");
    }
    // One that is retried does.
    w.store.retry(first[17], 1).await.unwrap();
    assert!(w.store.forget_batch_members(batch, &first).await.unwrap());
    assert!(!w.store.forget_dead_letters(batch, &first).await.unwrap());
    assert_eq!(w.rows("batch_member").await, 5_200);
    bury(&first[17..18]).await;

    assert!(w.store.forget_dead_letters(batch, &first).await.unwrap());
    let counted = view(w, batch).await;
    let all = MEMBERS as u64;
    assert_eq!(
        (counted.members, counted.ended, counted.dead_letters),
        (all, 0, all)
    );
    let ended = end().await.expect("the rest is few").end;
    assert_eq!((ended.members, ended.dead_letters), (all, all));
    let counted = view(w, batch).await;
    assert_eq!(
        (counted.members, counted.ended, counted.dead_letters),
        (all, all, all)
    );
    assert_eq!(w.rows("batch_member").await, 0);
    assert!(!w.store.forget_dead_letters(batch, &last).await.unwrap());
    // Dead letters keep other batches open.
    let (open, hints) = batch_of(w, 1).await;
    kill(w, &hints[0]).await;
    let dead = [hints[0].id];
    assert!(!w.store.forget_dead_letters(open, &dead).await.unwrap());
    assert!(w.store.forget_batch_members(open, &dead).await.unwrap());
}

pub(super) async fn batches_are_listed_and_forgotten_after_their_time<S: SqlBench>(w: &World<S>) {
    let (ended, hints) = batch_of(w, 1).await;
    let (open, _) = batch_of(w, 2).await;
    complete(w, &hints[0]).await;
    assert!(ends(w, ended).await);
    let listed = |all: Vec<BatchView>| all.into_iter().map(|view| view.id).collect::<Vec<_>>();
    let client = client(w);
    assert_eq!(listed(client.open_batches(10).await.unwrap()), [open]);
    assert_eq!(listed(client.batches(10).await.unwrap()), [open, ended]);
    assert_eq!(listed(client.batches(1).await.unwrap()), [open]);
    w.store.prune_history(DAY, 100).await.unwrap();
    assert_eq!(w.rows("batch").await, 2);
    w.store.prune_history(Duration::ZERO, 100).await.unwrap();
    assert_eq!(listed(client.batches(10).await.unwrap()), [open]);
    // The leader reads open batches page by page.
    let (second, hints) = batch_of(w, 1).await;
    complete(w, &hints[0]).await;
    let first = w.store.open_batches(None, 1).await.unwrap();
    assert_eq!((first.over, first.next), (vec![], Some(open)));
    let next = w.store.open_batches(first.next, 1).await.unwrap();
    assert_eq!((next.over, next.next), (vec![second], Some(second)));
}

/// Writes these columns of a batch, and deletes its only member.
async fn spoil<S: SqlBench>(w: &World<S>, set: &str) -> BatchId {
    let (batch, hints) = batch_of(w, 1).await;
    let set = format!("UPDATE {{s}}batch SET {set} WHERE id = '{batch}'");
    assert_eq!(w.store.execute(&set).await, 1);
    w.store.delete(hints[0].id).await.unwrap();
    batch
}

pub(super) async fn a_batch_whose_id_at_the_end_is_taken_ends_without_its_job_and_keeps_the_fields<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let text = "x".repeat(20_000);
    let template = format!(r#"{{"type":"at-end","payload":{{"n":1.50,"text":"{text}"}}}}"#);
    let others = w.ready((0..4).map(|_| work()).collect()).await;
    let others: Vec<JobId> = others.iter().map(|hint| hint.id).collect();
    let due = Utc::now() + chrono::Duration::days(1);
    for (id, change) in others[1..].iter().zip([
        Change::Reschedule(due),
        Change::Suspend,
        Change::MakeDeadLetter("enough".to_owned()),
    ]) {
        w.store.change_many(&[*id], &change).await.unwrap();
    }
    for other in others {
        let set = format!("callback_id = '{other}', callback = '{template}'");
        let batch = spoil(w, &set).await;
        assert_eq!(w.store.open_batches(None, 100).await.unwrap().over, [batch]);
        let before = w.state(other).await;
        let ended = w.store.end_batch(batch, &[]).await.unwrap().unwrap();
        assert!(ended.job.is_none() && ended.ready.is_empty(), "{ended:?}");
        let view = view(w, batch).await;
        assert_eq!(view.state, BatchState::Ended);
        assert!(view.refused.as_ref().unwrap().contains(&other.to_string()));
        assert_eq!(view.refused, ended.refused);
        assert!(w.store.batches(true, 100).await.unwrap().contains(&view));
        assert!(w.store.end_batch(batch, &[]).await.unwrap().is_none());
        assert_eq!(w.state(other).await, before);
        let kept = match w.store.name() {
            "sqlite" => "json_extract(callback, '$.callback.payload.text')",
            _ => "callback #>> '{callback,payload,text}'",
        };
        let kept = format!(
            "SELECT count(*) FROM {{s}}batch WHERE id = '{batch}' AND {kept} = '{text}'
             AND CAST(callback AS text) LIKE '%:1.50,%'"
        );
        assert_eq!(w.store.number(&kept).await, 1);
    }
    // Without a job at the end, and with counts as large as can be.
    let batch = spoil(w, "departed = 4611686018427387903, callback = NULL").await;
    assert!(ends(w, batch).await);
    let view = view(w, batch).await;
    assert_eq!((view.refused, view.fault), (None, None));
}

/// The error is the one that another job with the same id would cause.
pub(super) async fn a_job_at_the_end_that_a_trigger_refuses_keeps_its_batch_open_until_it_is_dropped<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let (refuse, drop) = match w.store.name() {
        "sqlite" => (
            &[
                "CREATE TABLE mine (id INTEGER UNIQUE)",
                "CREATE TRIGGER refuse BEFORE INSERT ON job WHEN NEW.type = 'at-end'
                 BEGIN INSERT INTO mine VALUES (1), (1); END",
            ][..],
            "DROP TRIGGER refuse",
        ),
        _ => (
            &[
                "CREATE FUNCTION {s}refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     RAISE EXCEPTION 'not now' USING ERRCODE = 'unique_violation';
                 END $$",
                "CREATE TRIGGER refuse BEFORE INSERT ON {s}job FOR EACH ROW WHEN (NEW.type = 'at-end')
                 EXECUTE FUNCTION {s}refuse()",
            ][..],
            "DROP TRIGGER refuse ON {s}job",
        ),
    };
    for statement in refuse {
        w.store.execute(statement).await;
    }
    let (batch, hints) = batch_of(w, 1).await;
    complete(w, &hints[0]).await;
    let left = [hints[0].id];
    let refused = w.store.end_batch(batch, &left).await.unwrap_err();
    let codes = ["23505", "2067"];
    assert!(codes.contains(&&*refused.sqlstate().unwrap()), "{refused}");
    assert_eq!(view(w, batch).await.state, BatchState::Open);
    assert_eq!(w.rows("batch_member").await, 1);
    w.store.execute(drop).await;
    assert!(ends(w, batch).await);
    assert_eq!(account(w, batch).await.members, 1);
}

/// A newer program may read it.
pub(super) async fn a_batch_whose_template_can_not_be_read_stays_open_and_stops_no_other<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let mut bad = Vec::new();
    for template in [
        r#"{"type":"at-end","retries":"x"}"#,
        r#"{"type":"jobwire.bulk"}"#,
        r#"{"type":""}"#,
        "7",
    ] {
        bad.push(spoil(w, &format!("callback = '{template}'")).await);
    }
    let (good, hints) = batch_of(w, 1).await;
    complete(w, &hints[0]).await;
    let over = w.store.open_batches(None, 100).await.unwrap().over;
    assert_eq!(over, [&bad[..], &[good]].concat());
    for batch in &bad {
        let refused = w.store.end_batch(*batch, &[]).await.unwrap_err();
        assert!(!refused.is_transient(), "{refused}");
        let view = view(w, *batch).await;
        assert_eq!((view.state, &view.refused), (BatchState::Open, &None));
        assert!(view.fault.is_some(), "{view:?}");
        assert!(w.store.batches(false, 100).await.unwrap().contains(&view));
    }
    assert!(ends(w, good).await);
    assert_eq!(view(w, good).await.fault, None);
    let correct = r#"UPDATE {s}batch SET callback = '{"type":"at-end"}' WHERE ended_at IS NULL"#;
    assert_eq!(w.store.execute(correct).await, 4);
    for batch in bad {
        assert!(ends(w, batch).await);
        assert_eq!(account(w, batch).await.members, 1);
    }
}

/// A trigger of the application may raise the error of a full disk.
#[tokio::test]
async fn an_error_of_a_full_disk_that_is_one_batchs_own_stops_no_other() {
    let w = World::<PgStore>::open().await;
    let bed = Bed::new(&w);
    refuse_as_if_the_disk_were_full(&w, "NEW.type = 'at-end'").await;
    // The leader looks at the batches in the order of their ids.
    let (full, hints) = batch_of(&w, 1).await;
    complete(&w, &hints[0]).await;
    let member = work();
    let hint = Hint::new(member.id());
    let end = NewJob::of("note", "good");
    create(&w, Batch::named("good").jobs([member]).then(end)).await;
    complete(&w, &hint).await;
    let node = bed.node(quick()).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    eventually("the job at the end of the other batch", SOON, async || {
        (bed.notes.all() == ["good"]).then_some(())
    })
    .await;
    assert_eq!(view(&w, full).await.state, BatchState::Open);
    node.stop().await;
}

/// Any sequence of operations: the job at the end exists as soon as no member is left, and once.
pub(super) async fn whatever_becomes_of_its_members_a_batch_ends_once<S: SqlBench>(w: &World<S>) {
    for _ in 0..5 {
        let or_dead_letters = rand::rng().random_bool(0.5);
        let mut batch = Batch::named("b").then(at_end());
        if or_dead_letters {
            batch = batch.or_dead_letters();
        }
        let jobs: Vec<NewJob> = (0..rand::rng().random_range(1..6))
            .map(|_| work())
            .collect();
        let mut alive: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
        let mut members = alive.len() as u64;
        let batch = create(w, batch.jobs(jobs)).await;
        let mut ended = 0;
        while ended == 0 {
            let at = rand::rng().random_range(0..alive.len().max(1));
            let id = alive.get(at).copied();
            let state = match id {
                Some(id) => w.state(id).await,
                None => None,
            };
            let worker = node();
            match (rand::rng().random_range(0..9), id, state) {
                (0 | 1, Some(id), Some(JobState::Executable)) => {
                    let job = w.hold(worker, &Hint::new(id)).await;
                    w.store
                        .complete(worker, &[done(&job)], &take(worker))
                        .await
                        .unwrap();
                }
                (2, Some(id), Some(JobState::Executable)) => {
                    let job: LockedJob = w.hold(worker, &Hint::new(id)).await;
                    w.fail(worker, give_up(&job)).await;
                }
                (3, Some(id), Some(JobState::Executable)) => {
                    let job = w.hold(worker, &Hint::new(id)).await;
                    w.fail(worker, retry_after(&job, DAY)).await;
                }
                (4, Some(id), _) => {
                    w.store.retry(id, 2).await.unwrap();
                }
                (5, Some(id), _) => {
                    w.store.delete(id).await.unwrap();
                }
                (6, Some(id), _) => {
                    for table in ["job", "timer_job", "suspended_job", "dead_letter_job"] {
                        let delete = format!("DELETE FROM {{s}}{table} WHERE id = '{id}'");
                        w.store.execute(&delete).await;
                    }
                }
                (7, Some(id), _) => {
                    w.store.change_many(&[id], &Change::Suspend).await.unwrap();
                }
                (8, Some(_), _) if members < 12 => {
                    let hint = w.one(work().batch(batch)).await;
                    alive.push(hint.id);
                    members += 1;
                }
                _ => {}
            }
            let told: Vec<JobId> = id.into_iter().collect();
            let told = if rand::rng().random_bool(0.5) {
                &told[..]
            } else {
                &[]
            };
            let mut present = HashSet::new();
            let mut dead = 0;
            for id in &alive {
                match w.state(*id).await {
                    Some(JobState::DeadLetter) => dead += 1,
                    Some(_) => {
                        present.insert(*id);
                    }
                    None => {}
                }
            }
            let is_over = present.is_empty() && (or_dead_letters || dead == 0);
            let now = w.store.end_batch(batch, told).await.unwrap();
            assert_eq!(now.is_some(), is_over, "{present:?}, {dead} dead letters");
            if let Some(now) = now {
                ended += 1;
                assert_eq!(now.end.members, members);
                let expected = if or_dead_letters { dead } else { 0 };
                assert_eq!(now.end.dead_letters, expected);
            }
        }
        assert!(w.store.end_batch(batch, &alive).await.unwrap().is_none());
        let callback = view(w, batch).await.callback;
        assert_eq!(w.state(callback).await, Some(JobState::Executable));
    }
}

/// The transaction that adds it has begun before, so the job's date alone does not show its creator.
#[tokio::test]
async fn plain_sql_adds_no_job_of_another_transaction_to_a_batch() {
    let w = &World::<PgStore>::open().await;
    let mut tx = w.store.pool().begin().await.unwrap();
    let batch: uuid::Uuid = sqlx::query_scalar("SELECT jobwire.create_batch('b')")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    let create = "SELECT jobwire.create_job(type => 'work')";
    let of_another: uuid::Uuid = sqlx::query_scalar(create)
        .fetch_one(w.store.pool())
        .await
        .unwrap();
    let add = "SELECT jobwire.add_to_batch($1, $2)";
    for [before, after] in [
        ["SELECT 1", "SELECT 1"],
        ["SAVEPOINT s", "SELECT 1"],
        ["SAVEPOINT t", "RELEASE SAVEPOINT t"],
    ] {
        sqlx::query(before).execute(&mut *tx).await.unwrap();
        let own: uuid::Uuid = sqlx::query_scalar(create)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        sqlx::query(after).execute(&mut *tx).await.unwrap();
        // The second time, this transaction has also changed the row.
        for _ in 0..2 {
            let added = sqlx::query(add).bind(batch).bind(own);
            added.execute(&mut *tx).await.unwrap();
        }
    }
    let refused = sqlx::query(add).bind(batch).bind(of_another);
    let refused = refused.execute(&mut *tx).await.unwrap_err();
    assert!(refused.to_string().contains("field `job`"), "{refused}");
}

#[tokio::test]
async fn a_batch_of_plain_sql_ends_as_others_do() {
    let w = &World::<PgStore>::open().await;
    let pool = w.store.pool();
    let mut tx = pool.begin().await.unwrap();
    let batch: uuid::Uuid = sqlx::query_scalar(
        r#"SELECT jobwire.create_batch('import', '{"type": "at-end", "payload": {"n": 1.50}, "tenant": "t"}')"#,
    )
    .fetch_one(&mut *tx)
    .await
    .unwrap();
    let mut jobs = Vec::new();
    for values in ["NULL", "'{ }'", r#"'{"a": [1, "}"]}'"#] {
        let add = format!(
            "SELECT jobwire.add_to_batch($1, jobwire.create_job(type => 'work', custom_values => {values}))"
        );
        let job: uuid::Uuid = sqlx::query_scalar(sqlx::AssertSqlSafe(add))
            .bind(batch)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        jobs.push(Hint::new(JobId::from_uuid(job)));
    }
    tx.commit().await.unwrap();
    let batch = BatchId::from_uuid(batch);
    for hint in &jobs {
        assert!(!ends(w, batch).await);
        let worker = node();
        let job = w.hold(worker, hint).await;
        assert_eq!(job.job.batch(), Some(batch), "{:?}", job.job.custom_values);
        w.complete(worker, &job, &Handoff::Hint).await;
    }
    assert!(ends(w, batch).await);
    let (_, job, _) = w
        .store
        .get(view(w, batch).await.callback)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(job.payload.get(), r#"{"n": 1.50}"#);
    assert_eq!(job.tenant.as_deref(), Some("t"));
    assert_eq!(job.batch_end().unwrap().members, 3);
    let all = r#"SELECT jobwire.create_batch('all', '{"type": "a", "payload": [1], "process_instance": "i",
        "exclusive": false, "retries": 3, "priority": -1, "tenant": null, "custom_values": {"a": 1},
        "correlation_id": "0190C2A4-0000-7000-8000-000000000000"}')"#;
    sqlx::query(all).execute(pool).await.unwrap();
    for (wrong, said) in [
        ("SELECT jobwire.create_batch('')", "field `name`"),
        (
            "SELECT jobwire.create_batch('b', '[1]')",
            "field `callback`",
        ),
        (
            r#"SELECT jobwire.create_batch('b', '{"type": ""}')"#,
            "field `type`",
        ),
        (
            r#"SELECT jobwire.create_batch('b', '{"type": "a", "due_at": 1}')"#,
            "due_at",
        ),
        (
            r#"SELECT jobwire.create_batch('b', '{"type": "a", "process_instance": 4711}')"#,
            "has the field `process_instance` twice, or of another kind",
        ),
        (
            r#"SELECT jobwire.create_batch('b', '{"type": "a", "type": "b"}')"#,
            "has the field `type` twice",
        ),
        (
            r#"SELECT jobwire.create_batch('b', '{"type": "a", "retries": "3"}')"#,
            "the field `retries`",
        ),
        (
            r#"SELECT jobwire.create_batch('b', '{"type": "a", "priority": 1e3}')"#,
            "the field `priority`",
        ),
        (
            r#"SELECT jobwire.create_batch('b', '{"type": "a", "exclusive": "true"}')"#,
            "the field `exclusive`",
        ),
        (
            "SELECT jobwire.add_to_batch(gen_random_uuid(), jobwire.create_job(type => 'a'))",
            "field `batch`",
        ),
        (
            "SELECT jobwire.add_to_batch(jobwire.create_batch('b'), gen_random_uuid())",
            "field `job`",
        ),
        (
            "SELECT jobwire.add_to_batch(jobwire.create_batch('b'), jobwire.create_job(type => 'a', custom_values => '[1]'))",
            "field `job`",
        ),
    ] {
        let refused = sqlx::query(wrong).execute(pool).await.unwrap_err();
        assert!(refused.to_string().contains(said), "{wrong}: {refused}");
    }
}
