use std::time::Duration;

use jobwire_core::JobId;
use jobwire_core::job::scope::Services;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{ClockWindow, CycleOutcome, CycleReport, LeaderCycle, Refusal};

use super::world::{Bench, LEADER, LEASE, SqlBench, World, give_up, ids, node, unserved, work};

pub(super) async fn one_node_leads_and_others_learn_who<S: Bench>(w: &World<S>) {
    let (leader, follower) = (node(), node());
    let report = w.lead(leader).await;
    assert_eq!(report.term, 1);
    match w.turn(follower).await {
        CycleOutcome::Follows {
            leader: who,
            transport,
            remaining,
            now,
        } => {
            // A follower compares the database's clock with its own, as a leader does.
            assert!(
                (now - report.now).abs() < chrono::Duration::seconds(30),
                "{now}"
            );
            assert_eq!((who, transport.as_str()), (leader, "in-process"));
            assert!(remaining <= LEASE && remaining > LEASE / 2, "{remaining:?}");
        }
        CycleOutcome::Leads(_) => panic!("two leaders"),
    }
    assert_eq!(w.lead(leader).await.term, 1);
}

pub(super) async fn a_leader_that_resigns_is_followed_at_once<S: Bench>(w: &World<S>) {
    let (leader, follower) = (node(), node());
    w.lead(leader).await;
    // Only a leader can resign.
    w.store.resign(follower).await.unwrap();
    assert!(matches!(
        w.turn(follower).await,
        CycleOutcome::Follows { .. }
    ));
    w.store.resign(leader).await.unwrap();
    assert_eq!(w.lead(follower).await.term, 2);
    w.store.resign(leader).await.unwrap();
    assert!(matches!(w.turn(leader).await, CycleOutcome::Follows { .. }));
}

pub(super) async fn an_expired_leader_is_replaced<S: SqlBench>(w: &World<S>) {
    let (leader, follower) = (node(), node());
    w.lead(leader).await;
    w.store
        .execute("UPDATE {s}leader SET expires_at = {now} - {second}")
        .await;
    assert_eq!(w.lead(follower).await.term, 2);
    assert!(matches!(w.turn(leader).await, CycleOutcome::Follows { .. }));
}

/// A foreign program wrote the leader's row, or the database's clock was set back after the row was
/// written.
pub(super) async fn a_leader_whose_lease_no_leader_could_have_is_replaced<S: SqlBench>(
    w: &World<S>,
) {
    for wrong in [
        "expires_at = {now} + {second} * 86400",
        "expires_at = {now} - {second} * 86400",
        "expires_at = {now} - {second}, term = 9223372036854775807",
    ] {
        w.lead(node()).await;
        w.store
            .execute(&format!("UPDATE {{s}}leader SET {wrong}"))
            .await;
        let leader = node();
        w.lead(leader).await;
        assert!(matches!(w.turn(node()).await, CycleOutcome::Follows { .. }));
        w.store.resign(leader).await.unwrap();
    }
}

/// The leader looks for lost hints only if more jobs are executable than run, so a lease without a
/// job must not count.
pub(super) async fn a_lease_without_a_job_counts_as_no_running_job<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work()]).await;
    w.hold(node(), &hints[0]).await;
    w.store
        .execute("UPDATE {s}job_lease SET expires_at = {now} + {second} * 86400")
        .await;
    w.store
        .execute("DELETE FROM {s}job WHERE id IN (SELECT job_id FROM {s}job_lease)")
        .await;
    let report = w.lead(node()).await;
    assert_eq!((report.leased, report.executable), (0, 1));
}

/// Protocol rule 24: no node writes such a lease. After the database's clock was set back by days,
/// no holder renews it.
pub(super) async fn a_lease_that_ends_later_than_any_node_asks_for_has_ended<S: SqlBench>(
    w: &World<S>,
) {
    let hints = w.ready(vec![work(), work()]).await;
    let owner = node();
    w.lock(owner, &hints).await;
    let end = |hours: u32, id| {
        format!(
            "UPDATE {{s}}job_lease SET expires_at = {{now}} + {{second}} * {} WHERE job_id = '{id}'",
            hours * 3600
        )
    };
    w.store.execute(&end(24, hints[0].id)).await;
    w.store.execute(&end(26, hints[1].id)).await;
    let report = w.lead(node()).await;
    assert_eq!(rescued(&report), [hints[1].id]);
    assert_eq!(report.leased, 1);
    w.hold(node(), &hints[1]).await;
}

pub(super) async fn a_follower_changes_nothing<S: Bench>(w: &World<S>) {
    let (leader, follower) = (node(), node());
    w.lead(leader).await;
    let hint = w.one(work()).await;
    w.hold(node(), &hint).await;
    w.expire(hint.id).await;
    let by_sql = w.store.create_by_sql("work").await;
    assert!(matches!(
        w.turn(follower).await,
        CycleOutcome::Follows { .. }
    ));
    let report = w.lead(leader).await;
    assert_eq!(
        (rescued(&report), ids(&report.unhinted)),
        (vec![hint.id], vec![by_sql])
    );
}

pub(super) async fn expired_locks_are_reset_and_returned_once<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![work(), work().instance("a"), work(), work()])
        .await;
    let (leader, dead) = (node(), node());
    w.lock(dead, &hints[..3]).await;
    w.make_old(60).await;
    w.expire(hints[0].id).await;
    w.expire(hints[1].id).await;
    let report = w.lead(leader).await;
    assert_eq!(rescued(&report), [hints[0].id, hints[1].id]);
    let second = &report.rescued[1];
    assert_eq!(second.ready.hint.instance.as_deref(), Some("a"));
    assert_eq!(
        (&*second.needs.job_type, second.strikes, second.owner),
        ("work", 1, Some(dead))
    );
    assert_eq!((report.leased, report.executable), (1, 4));
    assert!(w.lead(leader).await.rescued.is_empty());
    let view = w.view(hints[0].id).await.unwrap();
    assert!((report.now - view.ready_at).num_seconds().abs() < 30);
    assert_eq!(view.lock_owner, None);
    // The leader cycle has counted the strike; the lock that follows counts none.
    assert_eq!(w.hold(node(), &hints[0]).await.strikes, 1);
    assert_eq!(w.hold(node(), &hints[1]).await.strikes, 1);
    assert_eq!(w.refusal(node(), &hints[2]).await, Some(Refusal::Locked));
}

pub(super) async fn no_more_than_asked_for_are_reset<S: Bench>(w: &World<S>) {
    let hints = w.ready((0..5).map(|_| work()).collect()).await;
    w.lock(node(), &hints).await;
    for hint in &hints {
        w.expire(hint.id).await;
    }
    let turn = |reset_at_most| LeaderCycle {
        node: jobwire_core::NodeId::from_uuid(jobwire_tests_node()),
        lease: LEASE,
        transport: "in-process",
        reset_at_most,
        clock: None,
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: Services::default(),
        again_after: LEASE,
        hint_at_most: 0,
        attempts_kept: AttemptsKept::new(),
    };
    for (asked, got) in [(0, 0), (2, 2), (2, 2), (2, 1), (2, 0)] {
        match w.store.run_leader_cycle(&turn(asked)).await.unwrap() {
            CycleOutcome::Leads(report) => assert_eq!(report.rescued.len(), got),
            CycleOutcome::Follows { .. } => panic!("no other node leads"),
        }
    }
}

/// Protocol rule 25: the database's clock is outside the window in which the leader expects it.
pub(super) async fn no_lock_is_taken_off_while_the_clock_is_doubted<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    w.hold(node(), &hint).await;
    w.expire(hint.id).await;
    let at = |seconds| chrono::Utc::now() + chrono::Duration::seconds(seconds);
    for (from, until, reset) in [(-7200, -3600, 0), (3600, 7200, 0), (-3600, 3600, 1)] {
        let turn = LeaderCycle {
            node: jobwire_core::NodeId::from_uuid(jobwire_tests_node()),
            lease: LEASE,
            transport: "in-process",
            reset_at_most: 10,
            clock: Some(ClockWindow {
                from: at(from),
                until: at(until),
            }),
            may_wait: Duration::ZERO,
            grace: Duration::ZERO,
            services: Services::default(),
            again_after: LEASE,
            hint_at_most: 0,
            attempts_kept: AttemptsKept::new(),
        };
        match w.store.run_leader_cycle(&turn).await.unwrap() {
            CycleOutcome::Leads(report) => {
                assert_eq!(report.rescued.len(), reset);
                assert_eq!(report.clock_outside, reset == 0);
            }
            CycleOutcome::Follows { .. } => panic!("no other node leads"),
        }
    }
}

/// The hint of a rescued job may be lost: its lease returns the job in leader cycles until a node
/// has locked it.
pub(super) async fn a_rescued_job_is_told_again_until_it_is_locked<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![
            work(),
            unserved(),
            work().instance("a"),
            work().instance("a"),
        ])
        .await;
    let dead = node();
    w.lock(dead, &hints).await;
    for hint in [&hints[0], &hints[2]] {
        w.expire(hint.id).await;
    }
    let report = w.lead(LEADER).await;
    assert_eq!(rescued(&report), [hints[0].id, hints[2].id]);
    assert!(w.lead(LEADER).await.rescued.is_empty(), "not at once");
    w.make_old(40).await;
    let report = w.lead(LEADER).await;
    assert_eq!(rescued(&report), [hints[0].id, hints[2].id]);
    assert!(report.rescued.iter().all(|job| job.owner.is_none()));
    // The intervals grow.
    w.make_old(40).await;
    assert!(w.lead(LEADER).await.rescued.is_empty());
    w.make_old(40).await;
    assert_eq!(w.lead(LEADER).await.rescued.len(), 2);
    w.lock(node(), &hints[..1]).await;
    w.make_old(1_000).await;
    assert_eq!(rescued(&w.lead(LEADER).await), [hints[2].id]);
}

/// The intervals begin with the rescue, however often the job was hinted in its life before.
pub(super) async fn a_rescued_job_of_a_long_life_is_told_again_soon<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    w.store.execute("UPDATE {s}job SET hints = 1000").await;
    w.hold(node(), &hint).await;
    w.expire(hint.id).await;
    assert_eq!(rescued(&w.lead(LEADER).await), [hint.id]);
    w.make_old(40).await;
    assert_eq!(rescued(&w.lead(LEADER).await), [hint.id]);
}

/// So does a lease whose job has an elder sibling that has become ready since: the hint of the instance lets
/// a node lock that one. Otherwise only the sweeper would find it.
pub(super) async fn a_rescued_job_behind_an_elder_sibling_is_told_again<S: Bench>(w: &World<S>) {
    let elder = work().instance("a").delay(Duration::from_secs(3_600));
    let elder_id = elder.id();
    w.create(vec![elder]).await;
    let younger = w.one(work().instance("a")).await;
    w.hold(node(), &younger).await;
    w.expire(younger.id).await;
    assert_eq!(rescued(&w.lead(LEADER).await), [younger.id]);
    // The first hint is lost.
    w.make_due(elder_id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    w.make_old(40).await;
    assert_eq!(rescued(&w.lead(LEADER).await), [younger.id]);
    let living = node();
    assert_eq!(w.hold(living, &younger).await.job.id, elder_id);
    w.make_old(1_000).await;
    assert!(
        w.lead(LEADER).await.rescued.is_empty(),
        "the instance is held"
    );
}

/// A job that another program deleted while it ran leaves no lease behind.
pub(super) async fn a_lease_without_a_job_ends_with_its_time<S: SqlBench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work()]).await;
    w.lock(node(), &hints).await;
    w.store
        .execute(&format!(
            "DELETE FROM {{s}}job WHERE id = '{}'",
            hints[0].id
        ))
        .await;
    w.lead(LEADER).await;
    assert_eq!(w.rows("job_lease").await, 2);
    w.expire(hints[0].id).await;
    assert!(w.lead(LEADER).await.rescued.is_empty());
    assert_eq!(w.rows("job_lease").await, 1);
}

fn rescued(report: &CycleReport) -> Vec<JobId> {
    let ready = report.rescued.iter().map(|rescued| &rescued.ready);
    ready.map(|ready| ready.hint.id).collect()
}

/// Returns the node of each cycle.
fn jobwire_tests_node() -> uuid::Uuid {
    uuid::Uuid::from_u128(17)
}

pub(super) async fn jobs_created_by_sql_are_returned_once<S: Bench>(w: &World<S>) {
    let leader = node();
    w.one(work()).await;
    let first = w.store.create_by_sql("work").await;
    let second = w.store.create_by_sql("work").await;
    w.make_old(60).await;
    let report = w.lead(leader).await;
    assert_eq!(ids(&report.unhinted), [first, second]);
    let view = w.view(first).await.unwrap();
    assert!((report.now - view.ready_at).num_seconds().abs() < 30);
    assert!(w.lead(leader).await.unhinted.is_empty());
    let job = w.hold(node(), &report.unhinted[0].hint).await;
    assert_eq!((job.job.id, job.job.job_type.as_str()), (first, "work"));
    assert_eq!(job.job.correlation_id, first.uuid());
}

pub(super) async fn unhinted_jobs_are_found_without_a_turn<S: Bench>(w: &World<S>) {
    w.one(work()).await;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(w.store.create_by_sql("work").await);
    }
    let mut found = ids(&w.store.unhinted(2).await.unwrap());
    assert_eq!(found.len(), 2);
    found.extend(ids(&w.store.unhinted(2).await.unwrap()));
    found.sort_unstable();
    made.sort_unstable();
    assert_eq!(found, made);
    assert!(w.store.unhinted(2).await.unwrap().is_empty());
}

pub(super) async fn the_report_counts_what_there_is<S: Bench>(w: &World<S>) {
    let leader = node();
    let empty = w.lead(leader).await;
    assert_eq!(
        (
            empty.leased,
            empty.executable,
            empty.timers,
            empty.dead_letters
        ),
        (0, 0, 0, 0)
    );
    assert!(empty.next_due.is_none() && empty.oldest_ready_at.is_none());
    let hints = w.ready(vec![work(), work(), work()]).await;
    let created = w.create(vec![work().delay(Duration::from_secs(60))]).await;
    let worker = node();
    let jobs = w.lock(worker, &hints[1..]).await.jobs;
    w.fail(worker, give_up(&jobs[0])).await;
    let report = w.lead(leader).await;
    assert_eq!(
        (
            report.leased,
            report.executable,
            report.timers,
            report.dead_letters
        ),
        (1, 2, 1, 1)
    );
    assert_eq!(report.next_due, created.timer);
    let oldest = w.view(hints[0].id).await.unwrap().ready_at;
    assert_eq!(report.oldest_ready_at, Some(oldest));
}
