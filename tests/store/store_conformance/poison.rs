//! Protocol rule 37: a row's fault stays with the row. Each transition meets one bad row among
//! twenty good ones.

use std::time::{Duration, Instant};

use jobwire_core::job::LockedJob;
use jobwire_core::store::{
    ClockWindow, Completion, Handoff, LanePage, LeaderCycle, Operated, OperatedJobs, Origin,
    OrphanQuery, Release, SuspensionScope,
};
use jobwire_core::{Hint, JobId, JobQuery, JobState, Lane, NewJob};
use jobwire_harness::wait::patience;

use super::world::{
    SqlBench, World, cycle, done, give_up, ids, job_ids, node, report, retry_after, take, terms,
    work,
};

const GOOD: usize = 20;

/// The time of three calls, with room for a slow machine: a call searches for a second. To tell all the
/// bad rows apart takes hundreds of calls.
const FEW: Duration = Duration::from_secs(60);

/// From now on the database refuses this operation on rows whose element is `poison`. On PostgreSQL
/// the error is of class 23.
async fn refuse<S: SqlBench>(w: &World<S>, what: &str, table: &str) {
    refuse_rows(w, what, table, "NEW.element = 'poison'").await;
}

async fn refuse_rows<S: SqlBench>(w: &World<S>, what: &str, table: &str, which: &str) {
    if w.store.name() == "sqlite" {
        let trigger = format!(
            "CREATE TRIGGER refuse_{what}_{table} BEFORE {what} ON {table} WHEN {which}
             BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
        );
        w.store.execute(&trigger).await;
        return;
    }
    let name = format!("{{s}}refuse_{what}_{table}");
    let function = format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation';
         END $$"
    );
    w.store.execute(&function).await;
    let trigger = format!(
        "CREATE TRIGGER refuse BEFORE {what} ON {{s}}{table} FOR EACH ROW WHEN ({which}) EXECUTE FUNCTION {name}()"
    );
    w.store.execute(&trigger).await;
}

/// Returns twenty good jobs around a bad one, and the bad one's id. Their ids are in this order, too.
fn jobs(make: impl Fn() -> NewJob) -> (Vec<NewJob>, JobId) {
    let mut jobs: Vec<NewJob> = (0..=GOOD).map(|_| make()).collect();
    let bad = jobs.remove(7).element("poison");
    let id = bad.id();
    jobs.insert(7, bad);
    (jobs, id)
}

async fn held<S: SqlBench>(w: &World<S>) -> (jobwire_core::NodeId, Vec<LockedJob>, JobId) {
    let (jobs, bad) = jobs(work);
    let hints = w.ready(jobs).await;
    let worker = node();
    let locked = w.lock(worker, &hints).await.jobs;
    assert_eq!(locked.len(), GOOD + 1);
    (worker, locked, bad)
}

async fn due<S: SqlBench>(w: &World<S>) -> JobId {
    let (jobs, bad) = jobs(|| work().delay(Duration::from_secs(3600)));
    w.create(jobs).await;
    make_due(w).await;
    bad
}

async fn make_due<S: SqlBench>(w: &World<S>) {
    let all_due = "UPDATE {s}timer_job SET due_at = {now} - {second}";
    w.store.execute(all_due).await;
}

/// Creates this many timers that the database refuses, due for longer than the good ones.
async fn bad_timers_before_good_ones<S: SqlBench>(w: &World<S>, bad: usize) {
    let poison = || work().delay(Duration::from_secs(3600)).element("poison");
    w.create((0..bad).map(|_| poison()).collect()).await;
    due(w).await;
    let longer = "UPDATE {s}timer_job SET due_at = due_at - {second} WHERE element = 'poison'";
    w.store.execute(longer).await;
    refuse(w, "INSERT", "job").await;
}

/// Asserts that the bad job is the only dead letter, under its own id, with the reason and its
/// original row.
async fn is_set_aside<S: SqlBench>(w: &World<S>, bad: JobId) {
    assert_eq!(w.rows("dead_letter_job").await, 1);
    let (view, _, stack) = w.store.get(bad).await.unwrap().expect("the bad job");
    assert_eq!(view.state, JobState::DeadLetter);
    let message = view.exception_message.unwrap_or_default();
    assert!(message.contains("poisoned"), "{message}");
    let stack = stack.unwrap_or_default();
    assert!(stack.contains(&bad.to_string()), "{stack}");
    let stuck = w.store.stuck();
    assert!(stuck.is_empty(), "{stuck:?}");
}

pub(super) async fn a_bad_timer_among_good_ones_is_set_aside<S: SqlBench>(w: &World<S>) {
    let bad = due(w).await;
    refuse(w, "INSERT", "job").await;
    let moved = w.store.move_due_timers(100).await.unwrap();
    assert_eq!(moved.ready.len(), GOOD);
    assert!(moved.now.timestamp() > 0, "the database's time is returned");
    assert_eq!(w.rows("timer_job").await, 0);
    is_set_aside(w, bad).await;
}

pub(super) async fn a_bad_timer_stops_no_few_that_are_taken<S: SqlBench>(w: &World<S>) {
    let bad = due(w).await;
    refuse(w, "INSERT", "job").await;
    let (terms, lanes) = (terms(node()), [Lane::default()]);
    let mut moved = 0;
    for _ in 0..GOOD {
        let taken = w.store.take_due_timers(&terms, &lanes, 4).await.unwrap();
        moved += taken.ready.len() + taken.locked.len();
    }
    assert_eq!(moved, GOOD);
    is_set_aside(w, bad).await;
}

pub(super) async fn a_bad_successor_stops_no_other_completion<S: SqlBench>(w: &World<S>) {
    let (worker, locked, bad) = held(w).await;
    refuse(w, "INSERT", "timer_job").await;
    let next = |id: JobId| {
        let next = work().delay(Duration::from_secs(60));
        (id == bad).then(|| Box::new(next.element("poison")))
    };
    let completions: Vec<Completion> = locked
        .iter()
        .map(|job| Completion {
            next: next(job.job.id),
            ..done(job)
        })
        .collect();
    let settled = w
        .store
        .complete(worker, &completions, &take(worker))
        .await
        .unwrap();
    assert_eq!(settled.applied.len(), GOOD + 1);
    assert!(settled.left.is_empty());
    assert_eq!(w.rows("job").await + w.rows("job_lease").await, 0);
    is_set_aside(w, bad).await;
}

pub(super) async fn a_bad_failure_stops_no_other<S: SqlBench>(w: &World<S>) {
    let (worker, locked, bad) = held(w).await;
    refuse(w, "INSERT", "timer_job").await;
    let failures: Vec<_> = locked
        .iter()
        .map(|job| retry_after(job, Duration::from_secs(60)))
        .collect();
    let then = Handoff::Hint;
    let settled = w.store.fail(worker, &failures, &then).await.unwrap();
    assert_eq!(settled.applied.len(), GOOD + 1);
    assert_eq!(w.rows("timer_job").await, GOOD as i64);
    is_set_aside(w, bad).await;
    // The message of the attempt itself is not lost.
    let message = w.view(bad).await.unwrap().exception_message.unwrap();
    assert!(message.contains("no luck"), "{message}");
}

/// The instance of a job that is set aside goes to the next sibling.
pub(super) async fn a_job_set_aside_leaves_its_instance<S: SqlBench>(w: &World<S>) {
    let bad = work().instance("a").element("poison");
    let hints = w.ready(vec![bad, work().instance("a"), work()]).await;
    let worker = node();
    let job = w.hold(worker, &hints[0]).await;
    refuse(w, "INSERT", "timer_job").await;
    let settled = w.fail(worker, retry_after(&job, Duration::ZERO)).await;
    assert_eq!(settled.left, [hints[0].id]);
    let other = w.hold(worker, &hints[2]).await;
    w.fail(worker, retry_after(&other, Duration::from_secs(60)))
        .await;
    let settled = w.fail(worker, retry_after(&job, Duration::ZERO)).await;
    assert_eq!(ids(&settled.ready), [hints[1].id]);
    is_set_aside(w, hints[0].id).await;
    assert_eq!(w.hold(node(), &hints[1]).await.job.id, hints[1].id);
}

pub(super) async fn a_bad_release_stops_no_other<S: SqlBench>(w: &World<S>) {
    let (worker, locked, bad) = held(w).await;
    refuse(w, "UPDATE", "job").await;
    let held = locked.iter().map(LockedJob::held);
    let held: Vec<_> = held.map(Release::of_attempt).collect();
    let settled = w.store.release(worker, &held).await.unwrap();
    assert_eq!(settled.ready.len(), GOOD);
    is_set_aside(w, bad).await;
}

pub(super) async fn a_bad_row_stops_no_turn<S: SqlBench>(w: &World<S>) {
    // One holder is dead, and plain SQL created as many jobs.
    let (_, _, bad) = held(w).await;
    let expire = "UPDATE {s}job_lease SET expires_at = {now} - {second}";
    w.store.execute(expire).await;
    for _ in 0..GOOD {
        w.store.create_by_sql("work").await;
    }
    refuse(w, "UPDATE", "job").await;
    // A search ends after a second. On a slow machine the next cycle goes on with it.
    let (mut rescued, mut unhinted) = (0, 0);
    let began = Instant::now();
    while (rescued < GOOD || unhinted < GOOD) && began.elapsed() < patience(FEW) {
        let report = w.lead_recording(Duration::from_secs(3_600)).await;
        rescued += report.rescued.len();
        unhinted += report.unhinted.len();
        assert!(report.term > 0 && report.executable > 0);
    }
    assert_eq!((rescued, unhinted), (GOOD, GOOD));
    assert_eq!(w.rows("attempt").await, GOOD as i64);
    is_set_aside(w, bad).await;
}

pub(super) async fn a_bad_row_that_was_never_hinted_stops_no_other<S: SqlBench>(w: &World<S>) {
    for number in 0..=GOOD {
        let id = w.store.create_by_sql("work").await;
        if number == 7 {
            let poison = format!("UPDATE {{s}}job SET element = 'poison' WHERE id = '{id}'");
            w.store.execute(&poison).await;
        }
    }
    refuse(w, "UPDATE", "job").await;
    assert_eq!(w.store.unhinted(100).await.unwrap().len(), GOOD);
    assert_eq!(w.rows("dead_letter_job").await, 1);
    assert!(w.store.unhinted(100).await.unwrap().is_empty());
}

/// A search for a refused row passes over a job that a node holds. The cycle may doubt the clock, so an end
/// of its lease proves nothing.
pub(super) async fn a_bad_row_that_a_node_holds_is_not_set_aside<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work().element("poison")).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.store.execute("UPDATE {s}job SET hints = 0").await;
    w.expire(hint.id).await;
    for _ in 0..GOOD {
        w.store.create_by_sql("work").await;
    }
    refuse(w, "UPDATE", "job").await;
    let at = |hours| chrono::Utc::now() - chrono::Duration::hours(hours);
    let doubted = LeaderCycle {
        clock: Some(ClockWindow {
            from: at(2),
            until: at(1),
        }),
        ..cycle(node())
    };
    let report = report(w.store.run_leader_cycle(&doubted).await.unwrap());
    assert_eq!(report.unhinted.len(), GOOD);
    assert!(w.store.unhinted(100).await.unwrap().is_empty());
    assert_eq!(w.rows("dead_letter_job").await, 0);
    w.complete(worker, &job, &take(worker)).await;
    assert_eq!(w.rows("job").await, GOOD as i64);
}

pub(super) async fn a_bad_orphan_stops_no_other<S: SqlBench>(w: &World<S>) {
    let (jobs, bad) = jobs(work);
    w.ready(jobs).await;
    w.make_old(60).await;
    refuse(w, "UPDATE", "job").await;
    let now = w.store.move_due_timers(0).await.unwrap().now;
    let before = now - Duration::from_secs(50);
    let mut query = OrphanQuery::new(Lane::default(), terms(node()).types, before, 100);
    (query.whole, query.mark) = (false, true);
    assert_eq!(w.store.orphans(&query).await.unwrap().ready.len(), GOOD);
    is_set_aside(w, bad).await;
}

/// Asserts that one of the jobs was refused and reported, that nothing was set aside, and that
/// nothing counts as stuck.
async fn only_one_was_refused<S: SqlBench>(w: &World<S>, done: OperatedJobs, bad: JobId) {
    let is_done = |(_, operated): &(JobId, Operated)| *operated == Operated::Done;
    assert!(done.operated.iter().all(is_done), "{done:?}");
    assert_eq!(done.operated.len(), GOOD);
    assert_eq!(done.refused.len(), 1, "{done:?}");
    let (id, reason) = &done.refused[0];
    assert_eq!(*id, bad);
    assert!(reason.contains("poisoned"), "{reason}");
    let stuck = w.store.stuck();
    assert!(stuck.is_empty(), "{stuck:?}");
}

pub(super) async fn a_bad_row_stops_no_deletion<S: SqlBench>(w: &World<S>) {
    let (jobs, bad) = jobs(work);
    let asked: Vec<JobId> = w.ready(jobs).await.iter().map(|hint| hint.id).collect();
    refuse_rows(w, "DELETE", "job", "OLD.element = 'poison'").await;
    let deleted = w.store.delete_many(&asked).await.unwrap();
    only_one_was_refused(w, deleted, bad).await;
    assert_eq!(w.find(JobQuery::default()).await, [bad]);
    // A single refused job is reported too.
    let deleted = w.store.delete_many(&[bad]).await.unwrap();
    assert_eq!(deleted.refused.len(), 1, "{deleted:?}");
    assert_eq!(w.state(bad).await, Some(JobState::Executable));
}

pub(super) async fn a_bad_row_stops_no_retry<S: SqlBench>(w: &World<S>) {
    let (worker, locked, bad) = held(w).await;
    let failures: Vec<_> = locked.iter().map(give_up).collect();
    let then = Handoff::Hint;
    w.store.fail(worker, &failures, &then).await.unwrap();
    let asked: Vec<JobId> = locked.iter().map(|job| job.job.id).collect();
    refuse(w, "INSERT", "job").await;
    let retried = w.store.retry_many(&asked, 3).await.unwrap();
    assert_eq!(retried.ready.len(), GOOD);
    only_one_was_refused(w, retried, bad).await;
    assert_eq!(w.state(bad).await, Some(JobState::DeadLetter));
    assert_eq!(w.rows("job").await, GOOD as i64);
    assert!(w.store.retry(bad, 3).await.is_err());
}

/// A row that cannot move to the suspended table stays where it is, is reported, and does not run.
/// When the suspension ends, its job is hinted.
pub(super) async fn a_bad_row_stops_no_suspension<S: SqlBench>(w: &World<S>) {
    let (mut jobs, bad) = jobs(|| work().tenant("t"));
    let delayed = || work().tenant("t").delay(Duration::from_secs(3600));
    let bad_timer = delayed().element("poison");
    let bad_timer_id = bad_timer.id();
    jobs.extend([delayed(), bad_timer]);
    let created = w.create(jobs).await;
    let hints: Vec<Hint> = created.ready.into_iter().map(|ready| ready.hint).collect();
    assert_eq!(hints.len(), GOOD + 1);
    refuse(w, "INSERT", "suspended_job").await;
    let scope = SuspensionScope::Tenant("t".to_owned());
    let suspended = w.store.suspend(&scope).await.unwrap();
    assert_eq!(suspended.moved, GOOD as u64 + 1);
    let mut refused: Vec<JobId> = suspended.refused.iter().map(|(id, _)| *id).collect();
    refused.sort_unstable();
    let mut both = [bad, bad_timer_id];
    both.sort_unstable();
    assert_eq!(refused, both);
    assert!(suspended.refused[0].1.contains("poisoned"), "{suspended:?}");
    assert_eq!(w.rows("dead_letter_job").await, 0);
    assert!(w.store.stuck().is_empty());
    assert_eq!(w.state(bad).await, Some(JobState::Executable));
    assert_eq!(w.state(bad_timer_id).await, Some(JobState::Timer));
    assert!(w.lock(node(), &hints).await.jobs.is_empty(), "suspended");
    // A second call changes nothing.
    let again = w.store.suspend(&scope).await.unwrap();
    assert_eq!((again.moved, again.refused.len()), (0, 2));
    let ready = w.store.activate(&scope).await.unwrap().ready;
    let mut hinted = ids(&ready);
    let mut executable: Vec<JobId> = hints.iter().map(|hint| hint.id).collect();
    hinted.sort_unstable();
    executable.sort_unstable();
    assert_eq!(hinted, executable);
    assert_eq!(w.rows("timer_job").await, 2);
}

/// Jobs that a refused activation has brought back are hinted by the activation that succeeds.
pub(super) async fn what_was_brought_back_before_a_refusal_is_hinted_at_the_end<S: SqlBench>(
    w: &World<S>,
) {
    let (some, bad) = jobs(|| work().tenant("t"));
    let (more, worse) = jobs(|| work().tenant("t"));
    let hints = w.ready(some.into_iter().chain(more).collect()).await;
    let scope = SuspensionScope::Tenant("t".to_owned());
    w.store.suspend(&scope).await.unwrap();
    // One row of this page is set aside; the other one stays, and the suspension with it.
    refuse(w, "INSERT", "job").await;
    assert!(w.store.activate(&scope).await.is_err());
    assert_eq!(w.rows("suspension").await, 1);
    assert_eq!(w.rows("job").await, 2 * GOOD as i64);
    assert!(w.lock(node(), &hints).await.jobs.is_empty(), "suspended");
    let mend = if w.store.name() == "sqlite" {
        "DROP TRIGGER refuse_INSERT_job"
    } else {
        "DROP TRIGGER refuse ON {s}job"
    };
    w.store.execute(mend).await;
    let ready = w.store.activate(&scope).await.unwrap().ready;
    let mut hinted = ids(&ready);
    hinted.sort_unstable();
    let mut back: Vec<JobId> = hints.iter().map(|hint| hint.id).collect();
    for id in [bad, worse] {
        if w.state(id).await == Some(JobState::DeadLetter) {
            back.retain(|job| *job != id);
        }
    }
    back.sort_unstable();
    assert_eq!(back.len(), 2 * GOOD + 1);
    assert_eq!(hinted, back, "each once");
    let held = w.lock(node(), &hints).await.jobs;
    assert_eq!(held.len(), back.len());
}

pub(super) async fn a_bad_row_stops_no_activation<S: SqlBench>(w: &World<S>) {
    let (jobs, bad) = jobs(|| work().tenant("t"));
    w.ready(jobs).await;
    let scope = SuspensionScope::Tenant("t".to_owned());
    let suspended = w.store.suspend(&scope).await.unwrap();
    assert_eq!(suspended.moved, GOOD as u64 + 1);
    refuse(w, "INSERT", "job").await;
    assert_eq!(w.store.activate(&scope).await.unwrap().ready.len(), GOOD);
    assert_eq!(
        w.rows("suspended_job").await + w.rows("suspension").await,
        0
    );
    is_set_aside(w, bad).await;
}

pub(super) async fn a_bad_row_stops_no_move_to_another_lane<S: SqlBench>(w: &World<S>) {
    let (jobs, bad) = jobs(work);
    w.ready(jobs).await;
    refuse(w, "UPDATE", "job").await;
    let page = LanePage {
        from: Lane::default(),
        to: Lane::unchecked("other"),
        state: JobState::Executable,
        after: None,
        at_most: 100,
        origin: Origin::Hook,
    };
    let moved = w.store.move_lane(&page).await.unwrap();
    assert_eq!((moved.moved, moved.ready.len()), (GOOD as u64, GOOD));
    is_set_aside(w, bad).await;
}

/// The same id is in two tables: the row that cannot move gets a new id, and the other row stays as
/// it is.
pub(super) async fn an_id_that_stands_in_two_tables_stops_no_timer<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let columns =
        "id, seq, revision, kind, type, payload, correlation_id, created_at, lane, ready_at";
    let twice = format!(
        "INSERT INTO {{s}}timer_job ({columns}, due_at) SELECT {columns}, {{now}} - {{second}} FROM {{s}}job"
    );
    assert_eq!(w.store.execute(&twice).await, 1);
    let timers = (0..GOOD).map(|_| work().delay(Duration::from_secs(3600)));
    w.create(timers.collect()).await;
    make_due(w).await;
    let moved = w.store.move_due_timers(100).await.unwrap();
    assert_eq!(moved.ready.len(), GOOD);
    assert_eq!(w.rows("timer_job").await, 0);
    assert_eq!(w.hold(node(), &hint).await.job.id, hint.id);
    let letters = w
        .find(JobQuery::default().states([JobState::DeadLetter]))
        .await;
    assert_eq!(letters.len(), 1);
    assert_ne!(letters[0], hint.id);
    let (_, _, stack) = w.store.get(letters[0]).await.unwrap().unwrap();
    let stack = stack.unwrap_or_default();
    assert!(stack.contains(&hint.id.to_string()), "{stack}");
}

/// Counters that other programs wrote stop at the end of their range, and no row is refused.
pub(super) async fn counters_at_the_end_of_their_range_go_on<S: SqlBench>(w: &World<S>) {
    let end = |table: &str| {
        format!(
            "UPDATE {{s}}{table} SET revision = 1000000000, hints = 1000000000, failures = 1000000000"
        )
    };
    let worker = node();
    w.create(vec![work().delay(Duration::from_secs(3600))])
        .await;
    w.store.execute(&end("timer_job")).await;
    make_due(w).await;
    let moved = w.store.move_due_timers(100).await.unwrap();
    assert_eq!(moved.ready.len(), 1);
    w.store.execute(&end("job")).await;
    let job = w.hold(worker, &moved.ready[0].hint).await;
    assert_eq!(w.release(worker, job.held()).await.ready.len(), 1);
    let job = w.hold(worker, &moved.ready[0].hint).await;
    w.expire(job.job.id).await;
    assert_eq!(w.lead(node()).await.rescued.len(), 1);
    let job = w.hold(worker, &moved.ready[0].hint).await;
    assert_eq!(w.fail(worker, give_up(&job)).await.applied.len(), 1);
    let message = w.view(job.job.id).await.unwrap().exception_message;
    assert_eq!(message.as_deref(), Some("no luck"));
    let (_, ready) = w.store.retry(job.job.id, 3).await.unwrap();
    assert_eq!(ready.len(), 1);
}

/// A database that refuses every row is itself at fault.
pub(super) async fn where_nothing_commits_nothing_is_set_aside<S: SqlBench>(w: &World<S>) {
    due(w).await;
    refuse_rows(w, "INSERT", "job", "NEW.lane = 'default'").await;
    let mut answer = w.store.move_due_timers(100).await;
    assert!(answer.is_err());
    // A search ends after some seconds. On a slow machine the next ones go on with it.
    let began = Instant::now();
    while answer.is_err() && began.elapsed() < patience(FEW) {
        answer = w.store.move_due_timers(100).await;
    }
    // From now on the rows are passed over.
    for _ in 0..2 {
        let moved = w.store.move_due_timers(100).await.unwrap();
        assert!(moved.ready.is_empty() && moved.next_due.is_some_and(|due| due > moved.now));
    }
    assert_eq!(w.rows("timer_job").await, GOOD as i64 + 1);
    assert_eq!(w.rows("dead_letter_job").await, 0);
    let stuck = w.store.stuck();
    assert_eq!(stuck.len(), 1);
    assert_eq!(
        (stuck[0].operation, stuck[0].jobs),
        ("move_due_timers", GOOD + 1)
    );
}

/// A constraint was added after rows had been accepted. It refuses every row from now on, and no
/// row is to blame.
pub(super) async fn where_a_new_constraint_refuses_a_page_nothing_is_set_aside<S: SqlBench>(
    w: &World<S>,
) {
    let (worker, locked, _) = held(w).await;
    let failures: Vec<_> = locked
        .iter()
        .map(|job| retry_after(job, Duration::from_secs(60)))
        .collect();
    let (before, after) = failures.split_at(GOOD / 2);
    let then = Handoff::Hint;
    let settled = w.store.fail(worker, before, &then).await.unwrap();
    assert_eq!(settled.applied.len(), before.len());
    refuse_rows(w, "INSERT", "timer_job", "NEW.lane = 'default'").await;
    let settled = w.store.fail(worker, after, &then).await.unwrap();
    assert_eq!(settled.left.len(), after.len());
    assert_eq!(w.rows("dead_letter_job").await, 0);
    let stuck = w.store.stuck();
    assert_eq!((stuck[0].operation, stuck[0].jobs), ("fail", after.len()));
}

/// More than one row in a hundred is refused: only one is set aside, and that raises an alarm. The
/// good rows still get through.
pub(super) async fn of_a_small_page_one_row_is_set_aside<S: SqlBench>(w: &World<S>) {
    due(w).await;
    let (more, _) = jobs(|| work().delay(Duration::from_secs(3600)).element("poison"));
    w.create(more.into_iter().take(2).collect()).await;
    make_due(w).await;
    refuse(w, "INSERT", "job").await;
    let moved = w.store.move_due_timers(100).await.unwrap();
    assert_eq!(moved.ready.len(), GOOD);
    // The remaining rows cause no busy loop.
    assert!(moved.next_due.is_some_and(|due| due > moved.now));
    assert_eq!(w.rows("dead_letter_job").await, 1);
    let stuck = w.store.stuck();
    assert_eq!((stuck[0].operation, stuck[0].jobs), ("move_due_timers", 2));
    assert!(stuck[0].reason.contains("1 %"), "{}", stuck[0].reason);
    // The remaining rows are passed over for a while.
    w.store.move_due_timers(100).await.unwrap();
    assert_eq!(w.rows("timer_job").await, 2);
}

/// More refused rows than a page holds are before the good ones, with any kind of error.
pub(super) async fn a_page_of_bad_timers_stops_no_timer_behind_it<S: SqlBench>(w: &World<S>) {
    bad_timers_before_good_ones(w, 30).await;
    let mut moved = 0;
    for _ in 0..10 {
        // A page of which no row gets through is an error.
        let page = w.store.move_due_timers(10).await;
        moved += page.map_or(0, |page| page.ready.len());
    }
    assert_eq!(moved, GOOD);
}

/// The database refuses every row that the leader cycle would mark. The node still leads: the next
/// leader would be refused the same rows, and no node would lead.
pub(super) async fn a_turn_of_which_no_row_commits_leads<S: SqlBench>(w: &World<S>) {
    w.create((0..5).map(|_| work().element("poison")).collect())
        .await;
    w.store.execute("UPDATE {s}job SET hints = 0").await;
    refuse(w, "UPDATE", "job").await;
    let leader = node();
    for _ in 0..3 {
        let report = w.lead(leader).await;
        assert!(report.unhinted.is_empty());
    }
    assert_eq!(w.store.stuck()[0].operation, "take_turn");
}

/// A node that runs nothing takes a few timers at a time.
pub(super) async fn bad_timers_stop_no_few_behind_them<S: SqlBench>(w: &World<S>) {
    bad_timers_before_good_ones(w, 60).await;
    let (terms, lanes) = (terms(node()), [Lane::default()]);
    let mut moved = 0;
    // A slow machine may need more than one call.
    for _ in 0..5 {
        let taken = w.store.take_due_timers(&terms, &lanes, 4).await;
        moved += taken.map_or(0, |taken| taken.ready.len() + taken.locked.len());
    }
    assert_eq!(moved, GOOD);
}

pub(super) async fn a_page_of_bad_rows_stops_no_row_behind_it<S: SqlBench>(w: &World<S>) {
    let bad = || work().element("poison");
    w.create((0..30).map(|_| bad()).collect()).await;
    let (good, _) = jobs(work);
    w.create(good).await;
    w.store.execute("UPDATE {s}job SET hints = 0").await;
    refuse(w, "UPDATE", "job").await;
    let mut hinted = 0;
    for _ in 0..10 {
        let page = w.store.unhinted(10).await;
        hinted += page.map_or(0, |page| page.len());
    }
    assert_eq!(hinted, GOOD);
}

pub(super) async fn a_hundred_rows_a_minute_are_set_aside<S: SqlBench>(w: &World<S>) {
    let bad = (0..102).map(|_| work().element("poison"));
    let hints = w.ready(bad.chain([work()]).collect()).await;
    let worker = node();
    let locked = w.lock(worker, &hints).await.jobs;
    refuse(w, "INSERT", "timer_job").await;
    // Each is alone in its page; the good one is taken last, and then each bad one is tried again.
    for job in locked.iter().chain(&locked[..102]) {
        w.fail(worker, retry_after(job, Duration::from_secs(60)))
            .await;
    }
    assert_eq!(w.rows("dead_letter_job").await, 100);
    assert_eq!(w.rows("job").await, 2);
    let stuck = w.store.stuck();
    assert!(stuck[0].reason.contains("100 rows"), "{}", stuck[0].reason);
}

/// A row that cannot be read is locked like any other, and marked as unreadable; the rest of its
/// batch runs.
pub(super) async fn an_unreadable_row_fails_no_batch<S: SqlBench>(w: &World<S>) {
    let (jobs, bad) = jobs(work);
    let mut hints: Vec<Hint> = w.ready(jobs).await;
    let sibling = w.one(work().instance("a").element("poison")).await;
    hints.push(sibling.clone());
    make_unreadable(w).await;
    let locked = w.lock(node(), &hints).await.jobs;
    assert_eq!(locked.len(), GOOD + 2);
    let unreadable: Vec<JobId> = locked
        .iter()
        .filter(|locked| locked.job.unreadable.is_some())
        .map(|locked| locked.job.id)
        .collect();
    assert_eq!(unreadable, [bad, sibling.id]);
    assert!(job_ids(&locked).contains(&hints[0].id));
}

/// Gives rows whose element is `poison` a kind that no program knows.
async fn make_unreadable<S: SqlBench>(w: &World<S>) {
    let update = "UPDATE {s}job SET kind = 'riddle' WHERE element = 'poison'";
    if w.store.name() == "sqlite" {
        w.store
            .execute("PRAGMA ignore_check_constraints = ON")
            .await;
        w.store.execute(update).await;
        w.store
            .execute("PRAGMA ignore_check_constraints = OFF")
            .await;
    } else {
        let unchecked = "ALTER TABLE {s}job DROP CONSTRAINT job_kind_check";
        w.store.execute(unchecked).await;
        w.store.execute(update).await;
    }
}

/// With so many refused rows that no search tells them apart, the good ones behind them still get
/// through.
pub(super) async fn thousands_of_bad_timers_stop_no_timer_behind_them<S: SqlBench>(w: &World<S>) {
    let bad = || work().delay(Duration::from_secs(3600)).element("poison");
    w.create((0..5_000).map(|_| bad()).collect()).await;
    make_due(w).await;
    due(w).await;
    let longer = "UPDATE {s}timer_job SET due_at = due_at - {second} WHERE element = 'poison'";
    w.store.execute(longer).await;
    refuse(w, "INSERT", "job").await;
    let through = "SELECT count(*) FROM {s}job WHERE element IS NULL";
    within_few_calls(w, through, async || {
        let _ = w.store.move_due_timers(1_000).await;
    })
    .await;
}

/// Asserts that all good rows get through in the time of this many calls. A call tries rows for a second, so
/// a slow machine needs more calls. The answers of calls are not counted: a part may be committed without an
/// answer in time.
async fn within_few_calls<S: SqlBench>(w: &World<S>, through: &str, call: impl AsyncFn()) {
    let mut good = 0;
    let began = Instant::now();
    while began.elapsed() < patience(FEW) {
        call().await;
        good = w.store.number(through).await;
        if good >= GOOD as i64 {
            break;
        }
    }
    assert_eq!(good, GOOD as i64);
}

pub(super) async fn thousands_of_bad_rows_stop_no_turn_and_no_row_behind_them<S: SqlBench>(
    w: &World<S>,
) {
    let bad = || work().element("poison");
    w.create((0..6_000).map(|_| bad()).collect()).await;
    let (good, _) = jobs(work);
    w.create(good).await;
    w.store.execute("UPDATE {s}job SET hints = 0").await;
    refuse(w, "UPDATE", "job").await;
    let leader = node();
    let through = "SELECT count(*) FROM {s}job WHERE element IS NULL AND hints > 0";
    within_few_calls(w, through, async || {
        w.lead(leader).await;
    })
    .await;
    w.store
        .execute("UPDATE {s}job SET hints = 0 WHERE element IS NULL")
        .await;
    within_few_calls(w, through, async || {
        let _ = w.store.unhinted(1_000).await;
    })
    .await;
}

/// Refused orphans do not end the pass of the lane: the page names the job after which the next
/// page begins.
pub(super) async fn bad_orphans_end_no_pass_of_their_lane<S: SqlBench>(w: &World<S>) {
    w.ready((0..30).map(|_| work().element("poison")).collect())
        .await;
    let (good, _) = jobs(work);
    w.ready(good).await;
    w.make_old(60).await;
    refuse(w, "UPDATE", "job").await;
    let now = w.store.move_due_timers(0).await.unwrap().now;
    let before = now - Duration::from_secs(50);
    let mut query = OrphanQuery::new(Lane::default(), terms(node()).types, before, 10);
    (query.whole, query.mark) = (false, true);
    let mut found = 0;
    loop {
        let page = w.store.orphans(&query).await.unwrap();
        found += page.ready.len();
        assert!(page.next.is_none() || page.next > query.after);
        query.after = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(found, GOOD);
}
