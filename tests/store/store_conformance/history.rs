//! History jobs, recorded attempts, errors and incidents.

use std::time::Duration;

use chrono::SubsecRound;
use jobwire_core::store::attempts::{Attempt, ErrorGroup, IncidentFilter, Resolution};
use jobwire_core::store::{Change, Completion, Failure, Handoff, Operated};
use jobwire_core::{JobId, JobKind, JobQuery, JobState, Lane, NewJob, PgStore};

use super::world::{SqlBench, World, done, give_up, node, retry_after, work};

pub(super) async fn a_history_job_has_its_lane_and_ten_attempts<S: SqlBench>(w: &World<S>) {
    let plain = work().instance("a").history();
    let own = work()
        .instance("a")
        .lane("mine")
        .max_attempts(2)
        .exclusive()
        .history();
    let counted = work().retry_policy_text("R4/PT1S").history();
    let hints = w.ready(vec![plain, own, counted, work()]).await;
    let mut found = Vec::new();
    for hint in &hints {
        let view = w.view(hint.id).await.unwrap();
        found.push((
            view.kind,
            view.lane.to_string(),
            view.retries,
            view.exclusive,
        ));
    }
    let history =
        |lane: &str, retries, exclusive| (JobKind::History, lane.to_owned(), retries, exclusive);
    let expected = [
        history("history", 10, false),
        history("mine", 2, true),
        history("history", 4, false),
        (JobKind::Message, "default".to_owned(), 3, false),
    ];
    assert_eq!(found, expected);
    assert_eq!(Lane::HISTORY, "history");
}

pub(super) async fn a_history_job_keeps_its_kind_through_every_table<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work().history()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.fail(worker, retry_after(&job, Duration::from_secs(60)))
        .await;
    let kind = async || w.view(hint.id).await.unwrap().kind;
    assert_eq!(kind().await, JobKind::History);
    for change in [
        Change::Suspend,
        Change::Activate,
        Change::MakeDeadLetter("no".to_owned()),
    ] {
        w.store.change_many(&[hint.id], &change).await.unwrap();
        assert_eq!(kind().await, JobKind::History, "{change:?}");
    }
    w.store.retry(hint.id, 10).await.unwrap();
    assert_eq!(kind().await, JobKind::History);
    let later = NewJob::of("work", &17)
        .delay(Duration::from_secs(60))
        .history();
    let later_id = later.id();
    w.create(vec![later]).await;
    let view = w.view(later_id).await.unwrap();
    assert_eq!((view.kind, view.state), (JobKind::History, JobState::Timer));
}

pub(super) async fn a_repeating_history_job_is_refused<S: SqlBench>(w: &World<S>) {
    let mut tx = w.store.begin().await.unwrap();
    let jobs = vec![work().repeat_text("R/PT1M").history()];
    let refused = w
        .store
        .insert(&mut tx, jobs, jobwire_core::store::Origin::Hook)
        .await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("`repeat` is set for a history job"), "{said}");
}

/// `jobwire.create_history_job` creates what `NewJob::history` creates, and refuses what it refuses.
#[tokio::test]
async fn sql_creates_the_history_job_of_the_library() {
    let w = World::<PgStore>::open().await;
    let sql = "SELECT jobwire.create_history_job(type => 'work', payload => '17', process_instance => 'a',
               tenant => 't', retry_policy => '30s')";
    let id = jobwire_core::sqlx::query_scalar(sql).fetch_one(w.store.pool());
    let id = JobId::from_uuid(id.await.unwrap());
    let own = work()
        .instance("a")
        .tenant("t")
        .retry_policy_text("30s")
        .history();
    let own = w.one(own).await.id;
    let columns = "kind, type, payload::text, process_instance, tenant, priority, exclusive, retries, retry_policy, lane";
    let same =
        format!("SELECT count(DISTINCT ({columns})) FROM {{s}}job WHERE id IN ('{id}', '{own}')");
    assert_eq!(w.store.number(&same).await, 1);
    for (arguments, field) in [
        ("type => ''", "type"),
        ("type => 'work', retries => 0", "retries"),
        ("type => 'work', lane => 'a b'", "lane"),
        ("type => 'work', retry_policy => 'often'", "retry_policy"),
        ("type => 'work', tenant => repeat('x', 1025)", "tenant"),
    ] {
        let call = format!("SELECT jobwire.create_history_job({arguments})");
        let said = w.store.try_execute(&call).await.unwrap_err().to_string();
        assert!(
            said.contains(&format!("field `{field}`")),
            "{arguments}: {said}"
        );
    }
}

fn attempt(outcome: &'static str, keep: Duration) -> Option<Box<Attempt>> {
    Some(Box::new(Attempt {
        job_type: "work".to_owned(),
        process_instance: None,
        tenant: Some("t".to_owned()),
        ran: Duration::from_secs(5),
        outcome,
        reason: None,
        keep,
    }))
}

const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);

pub(super) async fn attempts_are_recorded_with_their_outcomes<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work()]).await;
    let worker = node();
    let first = w.hold(worker, &hints[0]).await;
    let failure = Failure {
        attempt: attempt("retry", WEEK),
        ..retry_after(&first, Duration::ZERO)
    };
    w.fail(worker, failure).await;
    // Not recorded: its type does not ask for it.
    let other = w.hold(worker, &hints[1]).await;
    w.fail(worker, retry_after(&other, Duration::from_secs(60)))
        .await;
    w.make_due(hints[0].id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    let second = w.hold(worker, &hints[0]).await;
    let completion = Completion {
        attempt: attempt("done", WEEK),
        ..done(&second)
    };
    let stale = Completion {
        attempt: attempt("done", WEEK),
        ..done(&first)
    };
    // An outcome that is refused, because its lock is lost, is no attempt.
    let lost = w
        .store
        .complete(worker, &[stale], &Handoff::Hint)
        .await
        .unwrap();
    assert!(lost.applied.is_empty());
    let settled = w
        .store
        .complete(worker, &[completion], &Handoff::Hint)
        .await;
    assert_eq!(settled.unwrap().applied, [hints[0].id]);
    let attempts = w.store.attempts(hints[0].id, 10).await.unwrap();
    let outcomes: Vec<(&str, Option<&str>, Option<&str>)> = attempts
        .iter()
        .map(|a| (&*a.outcome, a.message.as_deref(), a.stack.as_deref()))
        .collect();
    let failed = ("retry", Some("no luck"), Some("at the first step"));
    assert_eq!(outcomes, [failed, ("done", None, None)]);
    assert_eq!(
        (attempts[0].fence, attempts[1].fence),
        (first.fence, second.fence)
    );
    for attempt in &attempts {
        assert_eq!((attempt.job, attempt.node), (hints[0].id, worker));
        assert_eq!((attempt.ended_at - attempt.started_at).num_seconds(), 5);
    }
    assert_eq!(w.store.attempts(hints[0].id, 1).await.unwrap().len(), 1);
    assert_eq!(w.rows("attempt").await, 2);
}

/// An attempt that ended in a dead letter ends before the incident that its outcome opens. So it does
/// not seem to begin after it, however short it was.
pub(super) async fn an_attempt_ends_before_the_incident_that_it_opens<S: SqlBench>(w: &World<S>) {
    let hints = w.ready((0..100).map(|_| work()).collect()).await;
    let worker = node();
    let locked = w.lock(worker, &hints).await;
    let failures = locked.jobs.iter().map(|job| Failure {
        attempt: attempt("dead-letter", WEEK),
        ..give_up(job)
    });
    let failures: Vec<Failure> = failures.collect();
    let failed = w.store.fail(worker, &failures, &Handoff::Hint).await;
    assert_eq!(failed.unwrap().applied.len(), 100);
    let incidents = w.store.incidents(&IncidentFilter::default()).await.unwrap();
    assert_eq!(incidents.len(), 100);
    for incident in incidents {
        let attempts = w.store.attempts(incident.job, 10).await.unwrap();
        // The triggers of SQLite read a clock of milliseconds.
        let ended_at = attempts[0].ended_at.trunc_subsecs(3);
        assert!(ended_at <= incident.opened_at, "{attempts:?} {incident:?}");
    }
}

pub(super) async fn an_attempt_commits_with_the_handlers_transaction<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    let completion = Completion {
        attempt: attempt("done", WEEK),
        ..done(&job)
    };
    for is_committed in [false, true] {
        let mut tx = w.store.begin().await.unwrap();
        let settled = w
            .store
            .complete_in(&mut tx, worker, &completion, &Handoff::Hint)
            .await;
        assert_eq!(settled.unwrap().applied, [hint.id]);
        if is_committed {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let recorded = w.store.attempts(hint.id, 10).await.unwrap().len();
        assert_eq!(recorded, usize::from(is_committed));
    }
}

/// Another writer knows the fences of running jobs, and those that come next.
pub(super) async fn a_forged_attempt_suppresses_no_true_one<S: SqlBench>(w: &World<S>) {
    let hints = w.ready((0..5).map(|_| work()).collect()).await;
    let worker = node();
    let mut held = w.lock(worker, &hints).await.jobs;
    held.sort_by_key(|job| job.job.seq);
    for job in &held {
        let forge = format!(
            "INSERT INTO {{s}}attempt (fence, job_id, type, node, started_at, ended_at, outcome, keep_until)
             VALUES ({}, '{}', 'work', '{}', {{now}}, {{now}}, 'forged', {{now}} + 3600 * {{second}})",
            job.fence.number(),
            job.job.id,
            node(),
        );
        assert_eq!(w.store.execute(&forge).await, 1);
    }
    let completion = Completion {
        attempt: attempt("done", WEEK),
        ..done(&held[0])
    };
    let completions = [completion];
    let settled = w.store.complete(worker, &completions, &Handoff::Hint);
    assert_eq!(settled.await.unwrap().applied, [held[0].job.id]);
    let failure = Failure {
        attempt: attempt("retry", WEEK),
        ..retry_after(&held[1], Duration::ZERO)
    };
    w.fail(worker, failure).await;
    // Its node dies. So does that of the next two, whose leases are forged with one fence.
    for job in &held[2..] {
        w.expire(job.job.id).await;
    }
    let fence = "UPDATE {s}job_lease SET fence = 7000000 WHERE job_id = '{id}'";
    for job in &held[3..] {
        let forge = fence.replace("{id}", &job.job.id.to_string());
        assert_eq!(w.store.execute(&forge).await, 1);
    }
    assert_eq!(w.lead_recording(WEEK).await.rescued.len(), 3);
    for (job, outcome) in held
        .iter()
        .zip(["done", "retry", "node-died", "node-died", "node-died"])
    {
        let attempts = w.store.attempts(job.job.id, 10).await.unwrap();
        let of_worker = attempts.iter().filter(|a| a.node == worker);
        let outcomes: Vec<&str> = of_worker.map(|a| &*a.outcome).collect();
        assert_eq!(outcomes, [outcome]);
    }
}

/// Any program with the rights of a node may write its row. An absurd time in it ends no leader cycle.
pub(super) async fn a_death_is_recorded_whatever_the_time_for_which_it_is_kept<S: SqlBench>(
    w: &World<S>,
) {
    for keep in [
        Duration::ZERO,
        Duration::from_millis(u64::MAX),
        Duration::MAX,
    ] {
        let hint = w.one(work()).await;
        w.hold(node(), &hint).await;
        w.expire(hint.id).await;
        let report = w.lead_recording(keep).await;
        assert_eq!(report.rescued.len(), 1, "{keep:?}");
        let attempts = w.store.attempts(hint.id, 10).await.unwrap();
        assert_eq!(attempts.len(), 1, "{keep:?}");
    }
    // Only the first one is over.
    assert_eq!(w.store.prune_history(WEEK, 10).await.unwrap(), 1);
    assert_eq!(w.rows("attempt").await, 2);
}

/// Three nodes die with the job, which is then quarantined. Of the other two jobs, one loses its node in a
/// cycle without recorded types, and one has a type that is not recorded.
pub(super) async fn the_death_of_a_node_is_an_attempt_of_types_that_record_them<S: SqlBench>(
    w: &World<S>,
) {
    let of_instance = work().instance("a").tenant("t");
    let other = NewJob::of("other-work", &17);
    let hints = w.ready(vec![of_instance, other, work()]).await;
    w.hold(node(), &hints[2]).await;
    w.die(hints[2].id).await;
    let (mut fences, mut nodes, mut locked_at) = (Vec::new(), Vec::new(), Vec::new());
    for strikes in 0..3 {
        let dead = node();
        let job = w.hold(dead, &hints[0]).await;
        assert_eq!(job.strikes, strikes);
        if strikes == 2 {
            assert!(w.store.run_alone(dead, &job.held()).await.unwrap());
        }
        fences.push(job.fence);
        nodes.push(dead);
        locked_at.push(w.view(hints[0].id).await.unwrap().locked_at.unwrap());
        if strikes == 0 {
            w.hold(dead, &hints[1]).await;
            w.expire(hints[1].id).await;
        }
        w.expire(hints[0].id).await;
        let report = w.lead_recording(WEEK).await;
        assert!(
            report
                .rescued
                .iter()
                .any(|of| of.ready.hint.id == hints[0].id)
        );
        // The next cycle ends no lease.
        let report = w.lead_recording(WEEK).await;
        assert!(report.rescued.is_empty());
        let attempts = w.store.attempts(hints[0].id, 10).await.unwrap();
        let last = attempts.last().unwrap();
        assert!(
            (report.now - last.ended_at).num_seconds().abs() < 30,
            "{last:?}"
        );
    }
    let attempts = w.store.attempts(hints[0].id, 10).await.unwrap();
    assert_eq!(attempts.iter().map(|a| a.fence).collect::<Vec<_>>(), fences);
    assert_eq!(attempts.iter().map(|a| a.node).collect::<Vec<_>>(), nodes);
    let began: Vec<_> = attempts.iter().map(|a| a.started_at).collect();
    assert_eq!(began, locked_at);
    for attempt in &attempts {
        assert_eq!(
            (&*attempt.job_type, &*attempt.outcome),
            ("work", "node-died")
        );
        assert_eq!((&attempt.message, &attempt.stack), (&None, &None));
        assert!(attempt.started_at <= attempt.ended_at, "{attempt:?}");
    }
    assert_eq!(w.rows("attempt").await, 3);
    let of_job = "SELECT count(*) FROM {s}attempt WHERE process_instance = 'a' AND tenant = 't'";
    assert_eq!(w.store.number(of_job).await, 3);
    // No handler has failed, so there is no error.
    assert!(w.store.errors(None, 10).await.unwrap().is_empty());

    // The node that locks it next makes it a dead letter, and its attempts stay.
    let worker = node();
    let job = w.hold(worker, &hints[0]).await;
    assert_eq!(job.strikes, 3);
    w.fail(worker, give_up(&job)).await;
    assert_eq!(w.store.attempts(hints[0].id, 10).await.unwrap().len(), 3);
}

pub(super) async fn a_cancelled_job_of_a_dead_node_has_its_attempt<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work()]).await;
    let dead = node();
    w.lock(dead, &hints).await;
    w.store.cancel(hints[0].id).await.unwrap();
    for hint in &hints {
        w.expire(hint.id).await;
    }
    let report = w.lead_recording(WEEK).await;
    assert_eq!(report.cancelled, [hints[0].id]);
    assert_eq!(report.rescued.len(), 1);
    for hint in &hints {
        let attempts = w.store.attempts(hint.id, 10).await.unwrap();
        let told: Vec<_> = attempts.iter().map(|a| (a.node, &*a.outcome)).collect();
        assert_eq!(told, [(dead, "node-died")]);
    }
    assert_eq!(w.rows("job").await, 1);
}

pub(super) async fn a_node_that_was_taken_for_dead_says_that_it_lost_its_lock<S: SqlBench>(
    w: &World<S>,
) {
    let hints = w.ready(vec![work(), work()]).await;
    let (living, dead) = (node(), node());
    let job = w.hold(living, &hints[0]).await;
    w.hold(dead, &hints[1]).await;
    for hint in &hints {
        w.expire(hint.id).await;
    }
    w.lead_recording(WEEK).await;
    let outcomes = async || {
        let mut outcomes = Vec::new();
        for hint in &hints {
            let attempts = w.store.attempts(hint.id, 10).await.unwrap();
            outcomes.extend(attempts.into_iter().map(|a| (a.node, a.outcome)));
        }
        outcomes
    };
    let died = |node| (node, "node-died".to_owned());
    assert_eq!(outcomes().await, [died(living), died(dead)]);
    for _ in 0..2 {
        assert!(w.store.clear_strike(&[job.held()]).await.unwrap());
        assert_eq!(
            outcomes().await,
            [(living, "lost-lock".to_owned()), died(dead)]
        );
    }
}

pub(super) async fn a_dead_letter_is_an_incident_until_it_is_revived_or_deleted<S: SqlBench>(
    w: &World<S>,
) {
    let hints = w
        .ready(vec![work().tenant("t").element("e"), work(), work()])
        .await;
    let worker = node();
    for hint in &hints[..2] {
        let job = w.hold(worker, hint).await;
        w.fail(worker, give_up(&job)).await;
    }
    let buried = Change::MakeDeadLetter("an operator decided".to_owned());
    w.store.change_many(&[hints[2].id], &buried).await.unwrap();
    let incidents = async |filter: IncidentFilter| w.store.incidents(&filter).await.unwrap();
    let open = incidents(IncidentFilter::default()).await;
    assert_eq!(open.len(), 3);
    let first = open.iter().find(|i| i.job == hints[0].id).unwrap();
    assert_eq!(first.message.as_deref(), Some("no luck"));
    assert_eq!(
        (first.tenant.as_deref(), first.element.as_deref()),
        (Some("t"), Some("e"))
    );
    assert_eq!((first.resolved_at, first.resolution), (None, None));
    let (revived, _) = w.store.retry(hints[0].id, 3).await.unwrap();
    assert_eq!(revived, Operated::Done);
    w.store.delete(hints[1].id).await.unwrap();
    let still = incidents(IncidentFilter::default()).await;
    assert_eq!(
        still.iter().map(|i| i.job).collect::<Vec<_>>(),
        [hints[2].id]
    );
    w.store.delete_many(&[hints[2].id]).await.unwrap();
    assert!(incidents(IncidentFilter::default()).await.is_empty());
    let resolution = async |id| {
        let all = incidents(IncidentFilter::default().resolved(true).job(Some(id))).await;
        assert_eq!(all.len(), 1);
        assert!(all[0].resolved_at >= Some(all[0].opened_at));
        all[0].resolution.unwrap()
    };
    assert_eq!(resolution(hints[0].id).await, Resolution::Revived);
    assert_eq!(resolution(hints[1].id).await, Resolution::Deleted);
    assert_eq!(resolution(hints[2].id).await, Resolution::Deleted);
    // The same job may become a dead letter again.
    let job = w.hold(worker, &hints[0]).await;
    w.fail(worker, give_up(&job)).await;
    let again = IncidentFilter::default()
        .resolved(true)
        .job(Some(hints[0].id));
    let again = incidents(again).await;
    assert_eq!(again.len(), 2);
    assert!(again[0].resolved_at.is_none() && again[1].resolved_at.is_some());
    let other = IncidentFilter::default().job_type(Some("other".to_owned()));
    assert!(incidents(other).await.is_empty());
}

pub(super) async fn dead_letters_before_the_migration_are_incidents<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.fail(worker, give_up(&job)).await;
    w.store.down_to(3).await;
    w.store.up().await;
    let open = w.store.incidents(&IncidentFilter::default()).await.unwrap();
    assert_eq!(open.iter().map(|i| i.job).collect::<Vec<_>>(), [hint.id]);
}

pub(super) async fn a_row_that_is_set_aside_is_an_incident<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    w.store.set_aside("job", hint.id, "wrong").await;
    let open = w.store.incidents(&IncidentFilter::default()).await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].message.as_deref(), Some("wrong"));
}

pub(super) async fn errors_are_grouped_by_type_and_message<S: SqlBench>(w: &World<S>) {
    let hints = w.ready((0..3).map(|_| work()).collect()).await;
    let worker = node();
    for hint in &hints {
        let job = w.hold(worker, hint).await;
        let recorded = (hint.id != hints[0].id)
            .then(|| attempt("retry", WEEK))
            .flatten();
        let failure = Failure {
            attempt: recorded,
            ..retry_after(&job, Duration::from_secs(60))
        };
        w.fail(worker, failure).await;
    }
    w.store.delete(hints[2].id).await.unwrap();
    let groups = w.store.errors(None, 10).await.unwrap();
    let [
        ErrorGroup {
            job_type,
            message,
            jobs,
            attempts,
            last_at,
            ..
        },
    ] = &groups[..]
    else {
        panic!("{groups:?}");
    };
    assert_eq!((&**job_type, &**message), ("work", "no luck"));
    assert_eq!((*jobs, *attempts, last_at.is_some()), (2, 2, true));
    assert_eq!(w.store.errors(Some("work"), 10).await.unwrap(), groups);
    assert!(w.store.errors(Some("other"), 10).await.unwrap().is_empty());
    assert_eq!(w.find(JobQuery::default()).await.len(), 2);
}

pub(super) async fn what_is_old_is_pruned_in_slices<S: SqlBench>(w: &World<S>) {
    let hints = w.ready((0..4).map(|_| work()).collect()).await;
    let worker = node();
    for (hint, keep) in hints
        .iter()
        .zip([Duration::ZERO, Duration::ZERO, Duration::ZERO, WEEK])
    {
        let job = w.hold(worker, hint).await;
        let failure = Failure {
            attempt: attempt("dead-letter", keep),
            ..give_up(&job)
        };
        w.fail(worker, failure).await;
    }
    w.store.delete(hints[0].id).await.unwrap();
    assert_eq!(w.store.prune_history(WEEK, 2).await.unwrap(), 2);
    assert_eq!((w.rows("attempt").await, w.rows("incident").await), (2, 4));
    assert_eq!(w.store.prune_history(Duration::ZERO, 2).await.unwrap(), 1);
    assert_eq!((w.rows("attempt").await, w.rows("incident").await), (1, 3));
    assert_eq!(w.store.prune_history(Duration::ZERO, 2).await.unwrap(), 0);
    let dead = w.one(work()).await;
    w.hold(node(), &dead).await;
    w.expire(dead.id).await;
    w.lead_recording(Duration::ZERO).await;
    assert_eq!(w.rows("attempt").await, 2);
    assert_eq!(w.store.prune_history(WEEK, 2).await.unwrap(), 1);
    assert_eq!(w.rows("attempt").await, 1);
    let open = w.store.incidents(&IncidentFilter::default()).await.unwrap();
    assert_eq!(open.len(), 3);
}
