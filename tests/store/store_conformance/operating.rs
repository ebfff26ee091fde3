use std::time::Duration;

use jobwire_core::Calendars;
use jobwire_core::job::series::next_occurrence;
use jobwire_core::store::{
    Change, Completion, EndedScope, Handoff, Operated, OperatedJobs, SuspensionScope,
};
use jobwire_core::{Client, JobId, JobQuery, JobState};

use super::world::{
    Bench, LEADER, SqlBench, World, done, give_up, ids, node, retry_after, take, unserved, work,
};

/// Creates one job in each state: executable, timer, suspended, dead letter.
async fn one_of_each<S: Bench>(w: &World<S>) -> [JobId; 4] {
    let worker = node();
    let executable = w.one(work()).await;
    let waiting = w.one(work()).await;
    let job = w.hold(worker, &waiting).await;
    w.fail(worker, retry_after(&job, Duration::from_secs(60)))
        .await;
    let suspended = w.one(work().tenant("t")).await;
    w.store
        .suspend(&SuspensionScope::Tenant("t".to_owned()))
        .await
        .unwrap();
    let dead = w.one(work()).await;
    let job = w.hold(worker, &dead).await;
    w.fail(worker, give_up(&job)).await;
    let made = [executable.id, waiting.id, suspended.id, dead.id];
    for (id, state) in made.iter().zip(JobState::ALL) {
        assert_eq!(w.state(*id).await, Some(*state));
    }
    made
}

pub(super) async fn a_running_job_is_not_deleted<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    assert_eq!(w.store.delete(hint.id).await.unwrap().0, Operated::Running);
    assert_eq!(
        w.complete(worker, &job, &Handoff::Hint).await.applied,
        [hint.id]
    );
    let hint = w.one(work()).await;
    w.hold(worker, &hint).await;
    w.die(hint.id).await;
    assert_eq!(w.store.delete(hint.id).await.unwrap().0, Operated::Done);
    assert_eq!(w.rows("job").await + w.rows("job_lease").await, 0);
}

/// Protocol rule 8: a deletion that unblocks siblings hints the next one.
pub(super) async fn a_deleted_sibling_says_who_is_next<S: Bench>(w: &World<S>) {
    let of = || work().instance("a");
    let hints = w.ready(vec![of(), of(), of()]).await;
    let (done, next) = w.store.delete(hints[0].id).await.unwrap();
    assert_eq!(done, Operated::Done);
    assert_eq!(
        next.iter().map(|r| r.hint.id).collect::<Vec<_>>(),
        [hints[1].id]
    );
    // While another job holds the instance, its end names the next one.
    let worker = node();
    w.hold(worker, &hints[1]).await;
    let (done, next) = w.store.delete(hints[2].id).await.unwrap();
    assert_eq!((done, next.len()), (Operated::Done, 0));
}

pub(super) async fn a_job_of_any_state_is_deleted<S: Bench>(w: &World<S>) {
    for id in one_of_each(w).await {
        assert_eq!(w.store.delete(id).await.unwrap().0, Operated::Done);
        assert_eq!(w.store.delete(id).await.unwrap().0, Operated::NotFound);
        assert_eq!(w.state(id).await, None);
    }
    for table in [
        "job",
        "timer_job",
        "suspended_job",
        "dead_letter_job",
        "job_exception",
    ] {
        assert_eq!(w.rows(table).await, 0, "{table}");
    }
}

pub(super) async fn a_dead_letter_is_retried<S: Bench>(w: &World<S>) {
    let [_, timer, _, dead] = one_of_each(w).await;
    for id in [dead, timer] {
        let (operated, ready) = w.store.retry(id, 7).await.unwrap();
        assert_eq!((operated, ids(&ready)), (Operated::Done, vec![id]));
        let job = w.hold(node(), &ready[0].hint).await.job;
        assert_eq!((job.retries, job.failures), (7, 0));
        assert_eq!(job.exception_message.as_deref(), Some("no luck"));
    }
    assert_eq!(
        w.rows("dead_letter_job").await + w.rows("timer_job").await,
        0
    );
    let nobody = JobId::generate();
    assert_eq!(
        w.store.retry(nobody, 3).await.unwrap().0,
        Operated::NotFound
    );
}

pub(super) async fn many_jobs_are_retried_at_once_and_each_is_accounted_for<S: Bench>(
    w: &World<S>,
) {
    let [executable, timer, _, dead] = one_of_each(w).await;
    let running = w.one(work()).await;
    w.hold(node(), &running).await;
    let nobody = JobId::generate();
    let asked = [dead, nobody, executable, running.id, timer];
    let retried = w.store.retry_many(&asked, 7).await.unwrap();
    assert!(retried.refused.is_empty(), "{retried:?}");
    let (mut operated, ready) = (retried.operated, retried.ready);
    operated.sort_unstable_by_key(|(id, _)| *id);
    let mut expected = asked.map(|id| {
        let why = match id {
            id if id == nobody => Operated::NotFound,
            id if id == running.id => Operated::Running,
            _ => Operated::Done,
        };
        (id, why)
    });
    expected.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(operated, expected);
    let (mut hinted, mut revived) = (ids(&ready), vec![dead, executable, timer]);
    hinted.sort_unstable();
    revived.sort_unstable();
    assert_eq!(hinted, revived);
    for id in revived {
        assert_eq!(w.view(id).await.unwrap().retries, 7);
    }
    let nothing = w.store.retry_many(&[], 7).await.unwrap();
    assert_eq!(nothing, OperatedJobs::default());
}

pub(super) async fn many_jobs_are_deleted_at_once_and_each_is_accounted_for<S: Bench>(
    w: &World<S>,
) {
    let of_each = one_of_each(w).await;
    let running = w.one(work()).await;
    w.hold(node(), &running).await;
    let siblings = || work().instance("a");
    let siblings = w.ready(vec![siblings(), siblings(), siblings()]).await;
    let died = w.one(work()).await;
    w.hold(node(), &died).await;
    w.die(died.id).await;
    let nobody = JobId::generate();
    let mut asked = vec![nobody, running.id, died.id, siblings[0].id, siblings[1].id];
    asked.extend(of_each);
    let mut deleted = w.store.delete_many(&asked).await.unwrap();
    assert!(deleted.refused.is_empty(), "{deleted:?}");
    deleted.operated.sort_unstable_by_key(|(id, _)| *id);
    asked.sort_unstable();
    let expected: Vec<_> = asked
        .into_iter()
        .map(|id| match id {
            id if id == nobody => (id, Operated::NotFound),
            id if id == running.id => (id, Operated::Running),
            id => (id, Operated::Done),
        })
        .collect();
    assert_eq!(deleted.operated, expected);
    // A deletion that unblocks siblings hints the next one (protocol rule 8).
    assert_eq!(ids(&deleted.ready), [siblings[2].id]);
    let left = w.find(JobQuery::default()).await;
    assert_eq!(left, [running.id, siblings[2].id]);
    assert_eq!(w.rows("job_lease").await, 1);
    assert_eq!(w.rows("job_exception").await, 0);
    let nothing = w.store.delete_many(&[]).await.unwrap();
    assert_eq!(nothing, OperatedJobs::default());
}

/// The next occurrence has as many attempts as the one before had in total, used and left.
pub(super) async fn a_revival_adds_no_attempts<S: Bench>(w: &World<S>) {
    let worker = node();
    for left in [3, 1] {
        let hint = w.one(work().max_attempts(3).repeat_text("R/PT10M")).await;
        let job = w.hold(worker, &hint).await;
        w.fail(worker, retry_after(&job, Duration::ZERO)).await;
        w.make_due(hint.id, 1).await;
        w.store.move_due_timers(10).await.unwrap();
        let job = w.hold(worker, &hint).await;
        assert_eq!((job.job.retries, job.job.failures), (2, 1));
        w.fail(worker, retry_after(&job, Duration::ZERO)).await;
        let (_, ready) = w.store.retry(hint.id, left).await.unwrap();
        let job = w.hold(worker, &ready[0].hint).await;
        assert_eq!((job.job.retries, job.job.failures), (left, 3 - left));
        let next = next_occurrence(&job.job, job.job.ready_at, &Calendars::default()).unwrap();
        let next_id = next.id();
        let completion = Completion {
            next: Some(Box::new(next)),
            has_traces: true,
            cancelled: false,
            ..done(&job)
        };
        let settled = w.store.complete(worker, &[completion], &take(worker)).await;
        assert_eq!(settled.unwrap().applied, [hint.id]);
        let next = w.view(next_id).await.unwrap();
        assert_eq!((next.retries, next.failures), (3, 0));
    }
}

pub(super) async fn a_running_job_is_not_retried<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    w.hold(node(), &hint).await;
    let (operated, ready) = w.store.retry(hint.id, 9).await.unwrap();
    assert_eq!((operated, ready.len()), (Operated::Running, 0));
    assert_eq!(w.view(hint.id).await.unwrap().retries, 3);
}

pub(super) async fn an_executable_job_is_hinted_again<S: Bench>(w: &World<S>) {
    let hint = w.one(work().instance("a")).await;
    let (operated, ready) = w.store.retry(hint.id, 9).await.unwrap();
    assert_eq!((operated, ids(&ready)), (Operated::Done, vec![hint.id]));
    assert_eq!(ready[0].hint.instance.as_deref(), Some("a"));
    assert_eq!(w.view(hint.id).await.unwrap().retries, 9);
    assert_eq!(w.rows("job").await, 1);
}

pub(super) async fn jobs_are_found_by_what_they_are<S: Bench>(w: &World<S>) {
    let [executable, waiting, suspended, dead] = one_of_each(w).await;
    let special = work()
        .instance("i")
        .process_definition("d")
        .element("e")
        .tenant("x")
        .lane("fast");
    let special = w.one(special).await;
    let other = w.one(unserved()).await;
    w.hold(node(), &special).await;
    let all = JobQuery::default;
    let view = w.view(waiting).await.unwrap();
    let after_due = view.due_at.unwrap() + Duration::from_secs(1);
    let cases = [
        (
            all(),
            vec![executable, waiting, suspended, dead, special.id, other.id],
        ),
        (all().id(dead), vec![dead]),
        (all().id(JobId::generate()), vec![]),
        (all().states([JobState::DeadLetter]), vec![dead]),
        (
            all().states([JobState::Timer, JobState::Suspended]),
            vec![waiting, suspended],
        ),
        (all().job_type("unserved"), vec![other.id]),
        (all().instance("i"), vec![special.id]),
        (all().process_definition("d"), vec![special.id]),
        (all().element("e"), vec![special.id]),
        (all().tenant("x"), vec![special.id]),
        (all().tenant("' OR true --"), vec![]),
        (all().lane("fast"), vec![special.id]),
        (all().correlation_id(other.id.uuid()), vec![other.id]),
        (all().locked(true), vec![special.id]),
        (
            all().locked(false),
            vec![executable, waiting, suspended, dead, other.id],
        ),
        (all().with_exception(true), vec![waiting, dead]),
        (
            all().with_exception(false).states([JobState::Executable]),
            vec![executable, special.id, other.id],
        ),
        (all().due_before(view.due_at.unwrap()), vec![]),
        (all().due_before(after_due), vec![waiting]),
    ];
    for (filter, wanted) in cases {
        let asked = format!("{filter:?}");
        assert_eq!(w.find(filter).await, wanted, "{asked}");
    }
    w.die(special.id).await;
    let locked = all().locked(true);
    assert!(w.find(locked).await.is_empty());
}

pub(super) async fn lists_are_paged_in_creation_order<S: Bench>(w: &World<S>) {
    let hints = w.ready((0..5).map(|_| work()).collect()).await;
    let made: Vec<JobId> = hints.iter().map(|h| h.id).collect();
    let page = |offset, limit| JobQuery::default().offset(offset).limit(limit);
    assert_eq!(w.find(page(0, 2)).await, made[..2]);
    let rest = w.store.find(&page(3, 10)).await.unwrap();
    assert_eq!(rest.iter().map(|v| v.id).collect::<Vec<_>>(), made[3..]);
    assert!(w.store.find(&page(0, 0)).await.unwrap().is_empty());
    assert!(w.store.find(&page(-1, -1)).await.unwrap().is_empty());
    assert_eq!(w.store.count(&page(0, 1)).await.unwrap(), 5);
}

pub(super) async fn one_job_is_shown_with_its_stack<S: Bench>(w: &World<S>) {
    let [executable, waiting, ..] = one_of_each(w).await;
    let (view, job, stack) = w.store.get(waiting).await.unwrap().unwrap();
    assert_eq!((view.id, job.id), (waiting, waiting));
    assert_eq!(stack.as_deref(), Some("at the first step"));
    let (_, job, stack) = w.store.get(executable).await.unwrap().unwrap();
    assert_eq!((job.decode::<i64>().unwrap(), stack), (17, None));
    assert!(w.store.get(JobId::generate()).await.unwrap().is_none());
}

/// Such a client publishes no hints. The counts of hints stay: other rules read them.
pub(super) async fn what_a_client_without_hints_makes_ready_is_noted_for_a_leader<S: SqlBench>(
    w: &World<S>,
) {
    let client = Client::without_hints(w.store.clone());
    let worker = node();
    let failed = async || {
        let hint = w.one(work()).await;
        let job = w.hold(worker, &hint).await;
        w.fail(worker, give_up(&job)).await;
        hint.id
    };
    let suspended = async || {
        let id = w.one(work()).await.id;
        let change = Change::Suspend;
        client.change(&[id], &change).await.unwrap();
        id
    };
    // The younger sibling of each is ready when the first one is deleted.
    let siblings = async |instance: &str| {
        let jobs = vec![work().instance(instance), work().instance(instance)];
        let (first, next) = (jobs[0].id(), jobs[1].id());
        w.create(jobs).await;
        (first, next)
    };
    let mut ready = Vec::new();

    let id = failed().await;
    client.retry(id, 1).await.unwrap();
    ready.push(id);
    let id = failed().await;
    client.retry_many(&[id], 1).await.unwrap();
    ready.push(id);
    let id = suspended().await;
    client.change(&[id], &Change::Activate).await.unwrap();
    ready.push(id);
    let (first, next) = siblings("deleted").await;
    client.delete(first).await.unwrap();
    ready.push(next);
    let hint = w.one(work()).await;
    w.hold(worker, &hint).await;
    client.unlock(hint.id).await.unwrap();
    let unlocked = hint.id;
    ready.push(unlocked);
    let tenant = SuspensionScope::Tenant("t".to_owned());
    client.suspend(&tenant).await.unwrap();
    let id = w.one(work().tenant("t")).await.id;
    client.activate(&tenant).await.unwrap();
    ready.push(id);

    let id = failed().await;
    let mut tx = client.begin().await.unwrap();
    tx.retry(id, 1).await.unwrap();
    tx.commit().await.unwrap();
    ready.push(id);
    let (first, next) = siblings("of the caller").await;
    let mut tx = w.store.begin().await.unwrap();
    let mut hook = client.hook();
    hook.delete(&mut tx, first).await.unwrap();
    hook.commit(tx).await.unwrap();
    ready.push(next);
    let first = work().instance("ended").process_definition("d");
    let next = work().instance("ended");
    ready.push(next.id());
    w.create(vec![first, next]).await;
    let scope = EndedScope::ProcessDefinition("d".to_owned());
    client.end(&scope).await.unwrap();

    let hints = async |id: JobId| w.view(id).await.unwrap().hints.unwrap();
    let before = hints(unlocked).await;
    assert!(before > 1, "it was ready before: {before}");
    let mut found = ids(&w.store.announce_noted(100).await.unwrap().ready);
    found.sort_unstable();
    ready.sort_unstable();
    assert_eq!(found, ready);
    assert_eq!(hints(unlocked).await, before + 1);
    assert!(w.store.announce_noted(100).await.unwrap().ready.is_empty());
    // One that was hinted since is forgotten: it would get a second hint.
    w.store.note_unannounced(&[unlocked]).await.unwrap();
    let hinted = "UPDATE {s}job SET ready_at = ready_at + 3600 * {second}";
    assert!(w.store.execute(hinted).await > 0);
    assert!(w.store.announce_noted(100).await.unwrap().ready.is_empty());
    // Of more than a page, the rest follows. A job that is named twice is noted once.
    let twice = [ready[0], ready[1], ready[0]];
    w.store.note_unannounced(&twice).await.unwrap();
    assert!(w.store.announce_noted(1).await.unwrap().more);
    assert!(w.store.announce_noted(1).await.unwrap().more);
    assert!(!w.store.announce_noted(1).await.unwrap().more);
    // A job that a node has locked meanwhile is forgotten, and so is one that is gone.
    let hint = w.one(work()).await;
    let noted = [hint.id, JobId::generate()];
    for _ in 0..2 {
        w.store.note_unannounced(&noted).await.unwrap();
    }
    w.hold(worker, &hint).await;
    let report = w.lead(LEADER).await;
    assert!(report.has_noted);
    assert!(w.store.announce_noted(100).await.unwrap().ready.is_empty());
    assert_eq!(w.rows("unannounced_job").await, 0);
    assert!(!w.lead(LEADER).await.has_noted);
}
