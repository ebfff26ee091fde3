//! Cases of PostgreSQL only: rows that another transaction has locked at the moment.

mod overtaken;

use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::job::periodic::Declared;
use jobwire_core::store::{
    ClaimOf, ClaimPage, ClockWindow, CycleOutcome, Handoff, LeaderCycle, Operated, Refusal,
    SuspensionScope,
};
use jobwire_core::{
    JobId, JobQuery, JobState, Lane, LaneRule, NodeId, PeriodicJob, PgStore, Store, StoreError,
};
use jobwire_harness::eventually;
use sqlx::AssertSqlSafe;

use super::world::{
    LEADER, LEASE, SqlBench, World, cycle, give_up, ids, job_ids, node, report, take, terms, work,
};
use jobwire_harness::world::{SOON, until_waiting};

#[tokio::test]
async fn a_row_that_is_busy_for_an_instant_is_tried_again() {
    let w = World::<PgStore>::open().await;
    let hints = w
        .ready(vec![work(), work().instance("a"), work().instance("a")])
        .await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = ANY($1) FOR UPDATE")
        .bind([hints[0].id.uuid(), hints[1].id.uuid()])
        .execute(&mut *other)
        .await
        .unwrap();
    assert_eq!(w.refusal(node(), &hints[0]).await, Some(Refusal::Busy));
    // No younger sibling overtakes the first.
    assert_eq!(w.refusal(node(), &hints[2]).await, Some(Refusal::Busy));
    other.rollback().await.unwrap();
    assert_eq!(w.hold(node(), &hints[0]).await.job.id, hints[0].id);
    assert_eq!(w.hold(node(), &hints[2]).await.job.id, hints[1].id);
}

#[tokio::test]
async fn a_busy_sibling_is_hinted_by_whoever_finishes() {
    let w = World::<PgStore>::open().await;
    let hints = w
        .ready(vec![work().instance("a"), work().instance("a")])
        .await;
    let worker = node();
    let job = w.hold(worker, &hints[0]).await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE")
        .bind(hints[1].id.uuid())
        .execute(&mut *other)
        .await
        .unwrap();
    let settled = w.complete(worker, &job, &take(worker)).await;
    assert!(settled.next.is_empty());
    assert_eq!(ids(&settled.ready), [hints[1].id]);
    other.rollback().await.unwrap();
}

/// A lease that is written while a batch is being locked costs the other jobs of the batch nothing.
#[tokio::test]
async fn a_lease_that_comes_between_refuses_its_own_job_only() {
    let w = World::<PgStore>::open().await;
    let hints = w.ready(vec![work(), work(), work()]).await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query(
        "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
         VALUES ($1, $2, 1000000, now(), now() + interval '1 hour')",
    )
    .bind(hints[1].id.uuid())
    .bind(node().uuid())
    .execute(&mut *other)
    .await
    .unwrap();
    let (store, terms, asked) = (w.store.clone(), terms(node()), hints.clone());
    let locking = tokio::spawn(async move {
        loop {
            match store.lock(&terms, &asked).await {
                // The statement waits only for a moment, and this machine may be slow.
                Err(error) if error.is_conflict() => {}
                locked => return locked,
            }
        }
    });
    // The statement has seen no lease, and waits for the outcome of the one that it met.
    until_waiting(&w.store, 1).await;
    other.commit().await.unwrap();
    let locked = locking.await.unwrap().unwrap();
    assert_eq!(job_ids(&locked.jobs), [hints[0].id, hints[2].id]);
    assert_eq!(locked.refused, [(hints[1].id, Refusal::Locked)]);
}

/// Protocol rule 9: statements that renew, clear strikes or end leases wait for no row, and report
/// which were busy.
#[tokio::test]
async fn a_transaction_that_hangs_on_a_lease_holds_up_no_renewal_and_no_turn() {
    let w = World::<PgStore>::open().await;
    let hints = w.ready(vec![work(), work(), work(), work()]).await;
    let (living, dead) = (node(), node());
    let held: Vec<_> = w.lock(living, &hints[..2]).await.jobs;
    let lost = w.lock(dead, &hints[2..]).await.jobs;
    for hint in &hints[2..] {
        w.expire(hint.id).await;
    }
    // A lease without a job would be deleted.
    w.store
        .execute(
            "INSERT INTO {s}job_lease (job_id, owner, fence, locked_at, expires_at)
             VALUES (gen_random_uuid(), gen_random_uuid(), 1, now(), now() - interval '1 hour')",
        )
        .await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query(
        "SELECT FROM jobwire.job_lease WHERE job_id = ANY($1)
             OR NOT EXISTS (SELECT FROM jobwire.job j WHERE j.id = job_id) FOR UPDATE",
    )
    .bind([hints[0].id.uuid(), hints[2].id.uuid()])
    .execute(&mut *other)
    .await
    .unwrap();

    let both: Vec<_> = held.iter().map(LockedJob::held).collect();
    let renewed = w.store.renew(living, LEASE, &both).await.unwrap();
    assert_eq!(
        (renewed.renewed, renewed.busy),
        (vec![hints[1].id], vec![hints[0].id])
    );
    let report = w.lead(node()).await;
    let rescued: Vec<JobId> = report.rescued.iter().map(|r| r.ready.hint.id).collect();
    assert_eq!(rescued, [hints[3].id]);
    let struck = lost.iter().filter(|job| job.job.id == hints[3].id);
    let strikes: Vec<_> = struck.map(LockedJob::held).collect();
    sqlx::query("SELECT FROM jobwire.job_lease WHERE job_id = $1 FOR UPDATE")
        .bind(hints[3].id.uuid())
        .execute(&mut *other)
        .await
        .unwrap();
    assert!(
        !w.store.clear_strike(&strikes).await.unwrap(),
        "one row was locked"
    );
    other.rollback().await.unwrap();
    assert!(w.store.clear_strike(&strikes).await.unwrap());
    assert_eq!(w.hold(node(), &hints[3]).await.strikes, 0);
}

/// Protocol rule 26. A node that lost its lock asks while the leader cycle that counts the strike is not
/// committed.
#[tokio::test]
async fn a_strike_that_a_cycle_counts_at_this_moment_is_taken_back_later() {
    let w = World::<PgStore>::open().await;
    let hint = w.one(work()).await;
    let lost = [w.hold(node(), &hint).await.held()];
    let mut cycle = w.store.pool().begin().await.unwrap();
    sqlx::query("UPDATE jobwire.job_lease SET owner = NULL, strikes = 1, struck = fence")
        .execute(&mut *cycle)
        .await
        .unwrap();
    assert!(!w.store.clear_strike(&lost).await.unwrap());
    cycle.commit().await.unwrap();
    assert!(w.store.clear_strike(&lost).await.unwrap());
    assert_eq!(w.hold(node(), &hint).await.strikes, 0);
}

/// Protocol rule 24. Handlers in transactions may have all connections for some seconds.
#[tokio::test]
async fn a_cycle_that_waits_for_a_connection_ends_leases() {
    let w = World::<PgStore>::open().await;
    let hint = w.one(work()).await;
    w.hold(node(), &hint).await;
    w.expire(hint.id).await;
    let pool = w.store.pool().clone();
    for (may_wait, reset) in [(0, 0), (600, 1)] {
        let mut taken = Vec::new();
        for _ in 0..pool.options().get_max_connections() {
            taken.push(pool.acquire().await.unwrap());
        }
        let now = chrono::Utc::now();
        let mut turn = cycle(LEADER);
        turn.clock = Some(ClockWindow {
            from: now - Duration::from_millis(500),
            until: now + Duration::from_millis(500),
        });
        turn.may_wait = Duration::from_secs(may_wait);
        let free = async {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            taken.clear();
        };
        let (outcome, ()) = tokio::join!(w.store.run_leader_cycle(&turn), free);
        let report = report(outcome.unwrap());
        assert_eq!(report.rescued.len(), reset);
        assert_eq!(report.clock_outside, reset == 0);
    }
}

/// Protocol rule 25. The server has just started, and no node could renew a lease before.
#[tokio::test]
async fn no_lease_is_ended_soon_after_a_start_of_the_server() {
    let w = World::<PgStore>::open().await;
    let hint = w.one(work()).await;
    w.hold(node(), &hint).await;
    w.expire(hint.id).await;
    let ten_years = Duration::from_secs(10 * 365 * 86_400);
    for (grace, reset) in [(ten_years, 0), (Duration::ZERO, 1)] {
        let turn = LeaderCycle {
            grace,
            ..cycle(LEADER)
        };
        let report = report(w.store.run_leader_cycle(&turn).await.unwrap());
        assert_eq!(report.rescued.len(), reset);
    }
}

/// A request for many jobs is a few statements, not one a job.
#[tokio::test]
async fn hundreds_of_dead_letters_are_retried_in_few_statements() {
    const LETTERS: usize = 500;
    let w = World::<PgStore>::open().await;
    let hints = w.ready((0..LETTERS).map(|_| work()).collect()).await;
    let worker = node();
    let locked = w.lock(worker, &hints).await.jobs;
    let failures: Vec<_> = locked.iter().map(give_up).collect();
    let then = Handoff::Hint;
    w.store.fail(worker, &failures, &then).await.unwrap();
    assert_eq!(w.rows("dead_letter_job").await, LETTERS as i64);
    w.store
        .execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        .await;
    let calls = async || -> i64 {
        let calls = "SELECT sum(calls)::bigint FROM pg_stat_statements
            WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let calls = sqlx::query_scalar(calls).fetch_one(w.store.pool());
        calls.await.unwrap()
    };
    let before = calls().await;
    let retried = w.store.retry_many(&job_ids(&locked), 3).await.unwrap();
    assert_eq!(retried.ready.len(), LETTERS);
    let sent = calls().await - before;
    assert!(sent < 25, "{sent} statements for {LETTERS} jobs");
}

/// A row that no node could have written hides no other node.
#[tokio::test]
async fn an_unreadable_row_of_a_node_hides_no_other_one() {
    let w = World::<PgStore>::open().await;
    let it = super::membership::membership(node());
    w.store.write_node(&it).await.unwrap();
    w.store
        .execute(
            "INSERT INTO {s}node (id, revision, types, lanes, host, version, transport)
             VALUES (gen_random_uuid(), -1, '{NULL}', '{{a,b},{c,d}}', '', '', '')",
        )
        .await;
    // Such rows would be the newest ones, and live for ever. They come last.
    w.store
        .execute(
            "INSERT INTO {s}node (id, revision, types, lanes, host, version, transport, seen_at)
             SELECT gen_random_uuid(), 1, '{x}', '{y}', '', '', '', '2099-01-01' FROM generate_series(1, 2000)",
        )
        .await;
    let nodes = w.store.nodes().await.unwrap();
    assert_eq!(nodes[0].membership, it);
    assert!(nodes[1..].iter().all(|node| !node.lives()));
    let forgotten = w
        .store
        .remove_silent_nodes(Duration::from_secs(300), &[])
        .await;
    assert_eq!(forgotten.unwrap(), 2000);
    w.store
        .execute("UPDATE {s}node SET lanes = '{a,NULL,b}' WHERE revision = -1")
        .await;
    assert_eq!(w.store.nodes().await.unwrap().len(), 2);
}

/// Protocol rule 9: the leader cycle does not wait for the leader's row either.
#[tokio::test]
async fn a_transaction_that_hangs_on_the_leaders_row_is_not_waited_for() {
    let w = World::<PgStore>::open().await;
    let leader = node();
    w.lead(leader).await;
    let mut other = w.store.pool().begin().await.unwrap();
    // A cycle that waits would do so until the server ends its statement.
    sqlx::query("SELECT FROM jobwire.leader FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    for asks in [leader, node()] {
        match w.turn(asks).await {
            CycleOutcome::Follows { leader: named, .. } => assert_eq!(named, leader),
            leads => panic!("{leads:?}"),
        }
    }
    other.rollback().await.unwrap();
    w.lead(leader).await;
}

/// Protocol rule 9: a transaction that hangs with an instance's row locked delays no other job.
#[tokio::test]
async fn a_transaction_that_hangs_on_an_instance_holds_up_no_other_job() {
    let w = World::<PgStore>::open().await;
    let jobs = ["locked", "inserted", "free"].map(|name| work().instance(name));
    let hints = w.ready([vec![work()], jobs.into()].concat()).await;
    w.store
        .execute("INSERT INTO {s}instance_lock (process_instance) VALUES ('locked')")
        .await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::raw_sql(
        "SELECT FROM jobwire.instance_lock FOR UPDATE;
         INSERT INTO jobwire.instance_lock (process_instance) VALUES ('inserted')",
    )
    .execute(&mut *other)
    .await
    .unwrap();
    let locked = w.lock(node(), &hints[..2]).await;
    assert_eq!(job_ids(&locked.jobs), [hints[0].id]);
    assert_eq!(locked.refused, [(hints[1].id, Refusal::Busy)]);
    // The rows of other instances are still tried, and a new row is waited for no longer than an
    // existing one.
    let locked = w.lock(node(), &[hints[1].clone(), hints[3].clone()]).await;
    assert_eq!(job_ids(&locked.jobs), [hints[3].id]);
    assert_eq!(w.refusal(node(), &hints[2]).await, Some(Refusal::Busy));
    other.rollback().await.unwrap();
    for hint in &hints[1..3] {
        assert_eq!(w.hold(node(), hint).await.job.id, hint.id);
    }
}

/// Jobs that were locked before an error are started, and the rest is tried again.
#[tokio::test]
async fn an_error_behind_a_lock_takes_nothing_back() {
    let w = World::<PgStore>::open().await;
    let hints = w.ready(vec![work(), work(), work().instance("a")]).await;
    w.hold(node(), &hints[1]).await;
    w.die(hints[1].id).await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job_lease FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let (store, terms, asked) = (w.store.clone(), terms(node()), hints.clone());
    let locking = tokio::spawn(async move { store.lock(&terms, &asked).await });
    // The lock statement that takes the lease over waits for it, and is cancelled.
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("a session that can be cancelled", SOON, async || {
        // It waits only for a moment.
        (w.store.number(cancel).await > 0 || locking.is_finished()).then_some(())
    })
    .await;
    let locked = locking.await.unwrap().unwrap();
    assert_eq!(job_ids(&locked.jobs), [hints[0].id]);
    let busy = [&hints[1], &hints[2]].map(|hint| (hint.id, Refusal::Busy));
    assert_eq!(locked.refused, busy);
    other.rollback().await.unwrap();
    assert_eq!(w.hold(node(), &hints[1]).await.job.id, hints[1].id);
}

/// Protocol rules 10 and 11: a completion passes on only the instance that its own job held. Here
/// the row names another job.
#[tokio::test]
async fn an_instance_that_its_row_gives_to_a_living_job_is_not_passed_on() {
    let w = World::<PgStore>::open().await;
    let (worker, job, owner, sibling) = hold_two_by_hand(&w).await;
    sqlx::query("UPDATE jobwire.instance_lock SET job_id = $1, owner = $2, fence = 1000000")
        .bind(sibling.uuid())
        .bind(owner.uuid())
        .execute(w.store.pool())
        .await
        .unwrap();
    let settled = w.complete(worker, &job, &take(worker)).await;
    assert_eq!(settled.applied, [job.job.id]);
    assert!(settled.next.is_empty() && settled.ready.is_empty());
}

/// Protocol rule 12: nothing should hold a sibling of the job that holds its instance. If something
/// does, no younger sibling runs beside it.
#[tokio::test]
async fn a_completion_passes_over_no_sibling_that_somebody_holds() {
    let w = World::<PgStore>::open().await;
    let (worker, job, ..) = hold_two_by_hand(&w).await;
    let settled = w.complete(worker, &job, &take(worker)).await;
    assert_eq!(settled.applied, [job.job.id]);
    assert!(settled.next.is_empty());
}

/// Holds the first of three siblings as usual; the second has a living lease that no statement of
/// the store has written. Returns the worker and its job, and the other owner and its job.
async fn hold_two_by_hand(w: &World<PgStore>) -> (NodeId, LockedJob, NodeId, JobId) {
    let hints = w
        .ready((0..3).map(|_| work().instance("a")).collect())
        .await;
    let (worker, owner, sibling) = (node(), node(), hints[1].id);
    let job = w.hold(worker, &hints[0]).await;
    sqlx::query(
        "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
         VALUES ($1, $2, 1000000, now(), now() + interval '1 hour')",
    )
    .bind(sibling.uuid())
    .bind(owner.uuid())
    .execute(w.store.pool())
    .await
    .unwrap();
    (worker, job, owner, sibling)
}

/// Protocol rule 28: a node that claims at the same moment has its page locked, and other nodes do
/// not wait for it.
#[tokio::test]
async fn claiming_passes_over_rows_that_somebody_has_locked() {
    let w = World::<PgStore>::open().await;
    let hints = w
        .ready(vec![work(), work().instance("a"), work(), work()])
        .await;
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = ANY($1) FOR UPDATE")
        .bind([hints[0].id.uuid(), hints[1].id.uuid()])
        .execute(&mut *other)
        .await
        .unwrap();
    let page = ClaimPage {
        lane: Lane::default(),
        of: ClaimOf::Next {
            after: None,
            look_at: 1_000,
        },
        at_most: 2,
    };
    let claimed = w.store.claim(&terms(node()), &page).await.unwrap();
    assert_eq!(job_ids(&claimed.jobs), [hints[2].id, hints[3].id]);
    other.rollback().await.unwrap();
    let claimed = w.store.claim(&terms(node()), &page).await.unwrap();
    assert_eq!(job_ids(&claimed.jobs), [hints[0].id, hints[1].id]);
}

/// The SQL functions give the priorities that the library gives, and tell whether the lane is named.
#[tokio::test]
async fn a_job_of_plain_sql_gets_the_priority_of_the_rules() {
    use jobwire_core::{JobDefinition, PriorityRule, PriorityScope};

    let w = World::<PgStore>::open().await;
    let create = async |function: &str, arguments: &str| {
        let sql = format!("SELECT jobwire.{function}({arguments})");
        let id: uuid::Uuid = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(w.store.pool())
            .await
            .unwrap();
        let job = w.store.get(JobId::from_uuid(id)).await.unwrap().unwrap().1;
        (job.priority, job.lane_named)
    };
    let (job, history) = ("create_job", "create_history_job");
    assert_eq!(create(job, "type => 'mail'").await, (0, Some(false)));
    let of_element = JobDefinition::of("mail").element("e");
    for (scope, priority) in [
        (PriorityScope::Default, 1),
        (PriorityScope::History, -1),
        (PriorityScope::ProcessDefinition("d".to_owned()), 2),
        (PriorityScope::Type("fax".to_owned()), 3),
        (PriorityScope::Override(of_element), 4),
    ] {
        let rule = PriorityRule::new(scope, priority);
        w.store.set_priority_rule(&rule).await.unwrap();
    }
    for (function, arguments, expected) in [
        (job, "type => 'mail'", (1, Some(false))),
        (job, "type => 'mail', priority => 0", (0, Some(false))),
        (
            job,
            "type => 'mail', priority => NULL, lane => 'x'",
            (1, Some(true)),
        ),
        (
            job,
            "type => 'mail', process_definition => 'd'",
            (2, Some(false)),
        ),
        (
            job,
            "type => 'fax', process_definition => 'd'",
            (3, Some(false)),
        ),
        (
            job,
            "type => 'fax', payload => '1', priority => 9",
            (9, Some(false)),
        ),
        (
            job,
            "type => 'mail', payload => '1'::jsonb, priority => 9, element => 'e'",
            (4, Some(false)),
        ),
        (
            job,
            "type => 'mail', element => 'e', due_at => now() + interval '1 day'",
            (4, Some(false)),
        ),
        (history, "type => 'mail'", (-1, Some(true))),
        (history, "type => 'mail', priority => 0", (0, Some(true))),
        (history, "type => 'fax'", (3, Some(true))),
    ] {
        assert_eq!(create(function, arguments).await, expected, "{arguments}");
    }
}

/// All writers share one configuration: the SQL function obeys the same rules as the library.
#[tokio::test]
async fn a_job_of_plain_sql_gets_the_lane_of_the_rules() {
    let w = World::<PgStore>::open().await;
    let mail = LaneRule::to("mail").job_type("mail").tenant("a");
    let urgent = LaneRule::to("urgent")
        .category("c")
        .min_priority(5)
        .max_priority(9);
    w.store.set_lane_rules(&[mail, urgent]).await.unwrap();
    for (arguments, expected) in [
        ("type => 'mail', tenant => 'a'", "mail"),
        ("type => 'mail', tenant => 'b'", "default"),
        ("type => 'mail', tenant => 'a', lane => 'own'", "own"),
        (
            "type => 'mail', tenant => 'a', lane => 'default'",
            "default",
        ),
        ("type => 'work', category => 'c', priority => 5", "urgent"),
        ("type => 'work', category => 'c', priority => 10", "default"),
        (
            "type => 'work', category => 'c', priority => 9, due_at => now() + interval '1 day'",
            "urgent",
        ),
        (
            "type => 'work', category => 'c', priority => NULL",
            "default",
        ),
    ] {
        let create = format!("SELECT jobwire.create_job({arguments})");
        let id = sqlx::query_scalar(AssertSqlSafe(create)).fetch_one(w.store.pool());
        let id: uuid::Uuid = id.await.unwrap();
        let lane = w.view(JobId::from_uuid(id)).await.unwrap().lane.to_string();
        assert_eq!(lane, expected, "{arguments}");
    }
    let chosen: String =
        sqlx::query_scalar("SELECT jobwire.lane_of('work', category => 'c', priority => 7)")
            .fetch_one(w.store.pool())
            .await
            .unwrap();
    assert_eq!(chosen, "urgent");
    let refused = sqlx::query("SELECT jobwire.create_job(type => 'work', lane => 'a b')")
        .execute(w.store.pool())
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("letters, digits"), "{refused}");
}

/// A session keeps the types of a function from its first call, and `pg_temp` comes before
/// `pg_catalog`. So a creator could make a function with more rights use the creator's type.
#[tokio::test]
async fn no_function_obeys_the_search_path_of_its_caller() {
    let w = World::<PgStore>::open().await;
    let loose: Vec<String> = sqlx::query_scalar(
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
         WHERE p.pronamespace = 'jobwire'::regnamespace AND l.lanname = 'plpgsql'
           AND NOT coalesce(p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)",
    )
    .fetch_all(w.store.pool())
    .await
    .unwrap();
    assert_eq!(loose, Vec::<String>::new());
    let mut creator = w.store.pool().acquire().await.unwrap();
    for sql in [
        "CREATE TEMP TABLE seen (value name)",
        "CREATE FUNCTION pg_temp.note(pg_catalog.text) RETURNS boolean LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO pg_temp.seen VALUES (current_user); RETURN true; END $$",
        "CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.note(value))",
        "SELECT jobwire.bad_retry_policy('exponential(1s,2,3h)'::pg_catalog.text)",
        "SELECT jobwire.bad_duration('PT1S'::pg_catalog.text)",
        "SELECT jobwire.create_job('work'::pg_catalog.text, '{}'::json,
             retry_policy => 'exponential(1s,2,3h)'::pg_catalog.text)",
    ] {
        sqlx::query(sql).execute(&mut *creator).await.unwrap();
    }
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_temp.seen")
        .fetch_one(&mut *creator)
        .await
        .unwrap();
    assert_eq!(seen, 0);
}

/// A date that `chrono` cannot represent would end every task that reads it.
#[tokio::test]
async fn a_moment_that_no_node_could_read_is_refused() {
    let w = World::<PgStore>::open().await;
    for (column, moment) in [
        ("due_at", "infinity"),
        ("due_at", "-infinity"),
        ("repeat_until", "infinity"),
        ("created_at", "262143-01-01"),
        ("ready_at", "infinity"),
    ] {
        let sql = format!(
            "INSERT INTO jobwire.job (id, type, correlation_id, {column})
             VALUES (gen_random_uuid(), 'work', gen_random_uuid(), '{moment}')"
        );
        let refused = sqlx::query(AssertSqlSafe(sql)).execute(w.store.pool());
        let refused = refused.await.unwrap_err().to_string();
        assert!(
            refused.contains(&format!("{column}_is_finite")),
            "{refused}"
        );
    }
    for (insert, why) in [
        (
            "batch (id, name, callback_id, created_at) VALUES (gen_random_uuid(), 'name', gen_random_uuid(), 'infinity')",
            "dates_are_finite",
        ),
        (
            "batch (id, name, callback_id, departed) VALUES (gen_random_uuid(), 'name', gen_random_uuid(), 9223372036854775807)",
            "departed",
        ),
        (
            "event (kind, job_id, type, at) VALUES ('created', gen_random_uuid(), 'work', '-infinity')",
            "dates_are_finite",
        ),
        (
            "event (kind, job_id, type, due_at) VALUES ('created', gen_random_uuid(), 'work', '294276-01-01')",
            "dates_are_finite",
        ),
        (
            "event (kind, job_id, type) VALUES ('unknown', gen_random_uuid(), 'work')",
            "kind",
        ),
        (
            "event (kind, job_id, type, message) VALUES ('created', gen_random_uuid(), 'work', repeat('x', 65537))",
            "message_is_at_most_64_kib",
        ),
        (
            "incident (job_id, opened_at, type) VALUES (gen_random_uuid(), 'infinity', 'work')",
            "dates_are_finite",
        ),
        (
            "incident (job_id, opened_at, type, message) VALUES (gen_random_uuid(), now(), 'work', repeat('x', 65537))",
            "message_is_at_most_64_kib",
        ),
        (
            "attempt VALUES (-1, gen_random_uuid(), 'work', NULL, NULL, gen_random_uuid(), now(), now(), 'done', NULL, NULL, 'infinity')",
            "dates_are_finite",
        ),
        (
            "job_exception VALUES (gen_random_uuid(), repeat('x', 8388609))",
            "stack_is_at_most_8_mib",
        ),
        (
            "event_stream (source, kinds, keep) VALUES ('s', '{created,NULL}', '1 hour')",
            "names_are_not_null",
        ),
        (
            "unique_dead_letter VALUES (gen_random_uuid(), 'work', '', '')",
            "key_is_1_to_512_bytes",
        ),
    ] {
        let sql = format!("INSERT INTO jobwire.{insert}");
        let refused = sqlx::query(AssertSqlSafe(sql)).execute(w.store.pool());
        let refused = refused.await.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let last = "SELECT jobwire.create_job(type => 'work', due_at => '262142-12-31')";
    sqlx::query(last).execute(w.store.pool()).await.unwrap();
    let moved = w.store.move_due_timers(1).await.unwrap();
    assert!(moved.next_due.is_some());
}

/// A check bounds every text and date of every table, or no program reads it as a value of its type.
#[tokio::test]
async fn every_text_and_date_of_the_schema_has_a_bound() {
    let unread = [
        // Only compared in SQL, or read within a range.
        "event_log.activity",
        "event_log.ended_at",
        "event_log.process_instance",
        "event_log.started_at",
        "job_exception.written_at",
        "job_lease.alone_since",
        "job_lease.cancelled_at",
        "job_progress.checkpoint_at",
        "job_progress.reported_at",
        "leader.expires_at",
        "leader.role",
        "leader.transport",
        "permit.expires_at",
        "permit_key.used_at",
        "priority_rule.since",
        "strict_order.since",
        "suspension.since",
        "event_stream.since",
        "unique_job.held_until",
        "unique_job.seen_at",
        "waiting_job.woken_at",
        // Written by migrations only.
        "migration.description",
        "migration.installed_on",
        "schema_version.applied_at",
    ];
    let w = World::<PgStore>::open().await;
    let found: Vec<String> = sqlx::query_scalar(
        "SELECT c.relname || '.' || a.attname
         FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relnamespace = 'jobwire'::regnamespace AND c.relkind = 'r'
             AND a.atttypid = ANY('{text,json,jsonb,text[],timestamptz}'::regtype[])
             AND NOT EXISTS (SELECT FROM pg_constraint k
                             WHERE k.conrelid = c.oid AND k.contype = 'c' AND a.attnum = ANY(k.conkey))
         ORDER BY 1",
    )
    .fetch_all(w.store.pool())
    .await
    .unwrap();
    let unbounded = found
        .iter()
        .filter(|found| !unread.contains(&found.as_str()));
    assert_eq!(unbounded.collect::<Vec<_>>(), Vec::<&String>::new());
}

/// The lease is like one of an older schema; the present schema refuses it.
#[tokio::test]
async fn a_lease_whose_dates_no_program_can_read_stops_no_list() {
    let w = World::<PgStore>::open().await;
    let hints = w.ready(vec![work(), work()]).await;
    w.hold(node(), &hints[0]).await;
    let endless = "UPDATE {s}job_lease SET expires_at = 'infinity', locked_at = '-infinity'";
    let refused = sqlx::query("UPDATE jobwire.job_lease SET expires_at = 'infinity'")
        .execute(w.store.pool())
        .await;
    assert!(refused.is_err());
    w.store
        .execute("ALTER TABLE {s}job_lease DROP CONSTRAINT dates_are_finite")
        .await;
    w.store.execute(endless).await;
    let found = w.store.find(&JobQuery::default()).await.unwrap();
    assert_eq!(found.len(), 2);
    assert!(w.store.get(hints[0].id).await.unwrap().is_some());
}

/// An error that should be transient comes again and again, and each time takes longer than a
/// search may: a row is the reason.
#[tokio::test]
async fn a_timer_that_fails_as_if_it_were_the_server_stops_no_other() {
    let w = World::<PgStore>::open().await;
    let later = || work().delay(std::time::Duration::from_secs(3600));
    w.create(vec![later(), later().element("poison"), later()])
        .await;
    w.store
        .execute("UPDATE {s}timer_job SET due_at = {now} - {second}")
        .await;
    w.store
        .execute(
            "CREATE FUNCTION {s}refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_sleep(1.1);
                 RAISE EXCEPTION 'canceled' USING ERRCODE = 'query_canceled';
             END $$",
        )
        .await;
    w.store
        .execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON {s}job FOR EACH ROW WHEN (NEW.element = 'poison')
             EXECUTE FUNCTION {s}refuse()",
        )
        .await;
    for _ in 0..3 {
        assert!(w.store.move_due_timers(10).await.is_err());
    }
    let mut moved = 0;
    // One search takes no longer than it needs to decide something.
    for _ in 0..5 {
        let page = w.store.move_due_timers(10).await;
        moved += page.map_or(0, |page| page.ready.len());
    }
    assert_eq!(moved, 2);
    let stuck = w.store.stuck();
    assert_eq!((stuck[0].operation, stuck[0].jobs), ("move_due_timers", 1));
    assert_eq!(w.rows("dead_letter_job").await, 0);
    // The server works again, and other timers come all the time. The refused one does not wait for
    // four minutes.
    w.store.execute("DROP TRIGGER refuse ON {s}job").await;
    let soon = std::time::Duration::from_secs(60);
    eventually("the refused timer to be moved", soon, async || {
        w.create(vec![later()]).await;
        w.store
            .execute("UPDATE {s}timer_job SET due_at = {now} - {second}")
            .await;
        w.store.move_due_timers(10).await.unwrap();
        (w.rows("timer_job").await == 0).then_some(())
    })
    .await;
    assert!(w.store.stuck().is_empty());
}

/// A transaction that holds a dead letter and a timer delays neither a retry nor a deletion of
/// other jobs. What it holds is refused with the reason, and stays.
#[tokio::test]
async fn locked_rows_of_any_table_delay_no_other_job_of_an_operator() {
    let w = World::<PgStore>::open().await;
    let worker = node();
    let mut dead = Vec::new();
    for hint in w.ready(vec![work(), work(), work(), work()]).await {
        let job = w.hold(worker, &hint).await;
        w.fail(worker, give_up(&job)).await;
        dead.push(hint.id);
    }
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.dead_letter_job WHERE id = $1 FOR UPDATE")
        .bind(dead[0].uuid())
        .execute(&mut *other)
        .await
        .unwrap();
    let retried = w.store.retry_many(&dead[..3], 3).await.unwrap();
    let mut done: Vec<JobId> = retried.operated.iter().map(|(id, _)| *id).collect();
    done.sort_unstable();
    assert_eq!(done, dead[1..3]);
    let refused: Vec<JobId> = retried.refused.iter().map(|(id, _)| *id).collect();
    assert_eq!(refused, dead[..1]);
    let one = w.store.retry(dead[0], 3).await.unwrap_err();
    assert!(
        matches!(one, StoreError::RowLocked(id) if id == dead[0]),
        "{one}"
    );
    assert!(one.changed_nothing() && one.is_transient());

    let asked = [dead[0], dead[3]];
    let deleting = w.store.delete_many(&asked);
    let free = eventually("the free row to be deleted", SOON, || async {
        (w.state(dead[3]).await.is_none()).then_some(())
    });
    let (deleted, ()) = tokio::join!(deleting, free);
    let deleted = deleted.unwrap();
    assert_eq!(deleted.operated, [(dead[3], Operated::Done)]);
    let refused: Vec<JobId> = deleted.refused.iter().map(|(id, _)| *id).collect();
    assert_eq!(refused, dead[..1]);
    assert_eq!(w.state(dead[0]).await, Some(JobState::DeadLetter));
    other.rollback().await.unwrap();
    assert_eq!(w.store.delete(dead[0]).await.unwrap().0, Operated::Done);
}

/// A session that is forgotten inside a transaction holds the row of a schedule.
#[tokio::test]
async fn a_locked_schedule_stops_no_node_that_changes_nothing() {
    let w = World::<PgStore>::open().await;
    let jobs = [PeriodicJob::new("nightly", "R/PT1H", work())];
    w.store.declare_periodic_jobs(&jobs).await.unwrap();
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.periodic_job FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let declared = w.store.declare_periodic_jobs(&jobs).await.unwrap();
    assert_eq!(declared, [Declared::Same]);
    drop(other);
}

/// Two nodes of a new release start together, and one of them is slow. The other waits for its rows for
/// longer than one statement does.
#[tokio::test]
async fn a_node_waits_for_schedules_that_another_one_changes() {
    let w = World::<PgStore>::open().await;
    let jobs = |schedule: &str| -> Vec<PeriodicJob> {
        let names = (0..35).rev().map(|number| format!("job-{number:02}"));
        names
            .map(|name| PeriodicJob::new(name, schedule, work()))
            .collect()
    };
    w.store
        .declare_periodic_jobs(&jobs("R/PT1H"))
        .await
        .unwrap();
    let mut other = w.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.periodic_job WHERE name = 'job-17' FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let store = w.store.clone();
    let changed = jobs("R/PT2H");
    let declaring = tokio::spawn(async move { store.declare_periodic_jobs(&changed).await });
    // Those before it are changed and committed.
    eventually("the first slice", SOON, async || {
        let all = w.store.periodic_jobs().await.unwrap();
        (all[9].schedule == "R/PT7200S").then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(!declaring.is_finished());
    other.rollback().await.unwrap();
    let declared = declaring.await.unwrap().unwrap();
    assert_eq!(declared, [Declared::Changed; 35]);
    let mut some = jobs("R/PT2H");
    some[3] = PeriodicJob::new("job-31", "R/PT3H", work());
    let declared = w.store.declare_periodic_jobs(&some).await.unwrap();
    let places = declared.iter().enumerate();
    let changed: Vec<usize> = places
        .filter(|(_, declared)| **declared == Declared::Changed)
        .map(|(place, _)| place)
        .collect();
    assert_eq!(changed, [3]);
}

/// Returns how many entries of this index were read so far.
async fn index_reads(w: &World<PgStore>, index: &str) -> i64 {
    let reads = sqlx::query_scalar(
        "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'jobwire' AND indexrelname = $1",
    );
    reads.bind(index).fetch_one(w.store.pool()).await.unwrap()
}

/// A claim keeps its plans. One that was made while the tables were empty serves full tables, too: it
/// finds each row by its key.
#[tokio::test]
async fn claims_read_by_key_though_their_plans_were_made_while_the_tables_were_empty() {
    let w = World::<PgStore>::open().await;
    let run = async |sql: &'static str| {
        sqlx::raw_sql(sql).execute(w.store.pool()).await.unwrap();
    };
    run("VACUUM ANALYZE").await;
    let page = ClaimPage {
        lane: Lane::default(),
        of: ClaimOf::Next {
            after: None,
            look_at: 1_000,
        },
        at_most: 1_000,
    };
    let terms = terms(node());
    for _ in 0..4 {
        let claim = || w.store.claim(&terms, &page);
        let (a, b, c, d) = tokio::join!(claim(), claim(), claim(), claim());
        for claimed in [a, b, c, d] {
            assert!(claimed.unwrap().jobs.is_empty());
        }
    }
    let jobs = (0..400).map(|n| match n % 2 {
        0 => work(),
        _ => work().instance(format!("{n}")),
    });
    w.ready(jobs.collect()).await;
    run(
        "INSERT INTO jobwire.permit_key (limit_name, key, size, used_at)
         SELECT 'limit', n, 1, clock_timestamp() FROM generate_series(1, 1000) AS n;
         INSERT INTO jobwire.waiting_job (job_id, limit_name, key, type, seq)
         SELECT id, 'limit', seq % 1000 + 1, type, seq FROM jobwire.job WHERE NOT exclusive;
         INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
         SELECT gen_random_uuid(), gen_random_uuid(), n, clock_timestamp(), clock_timestamp() + interval '1 hour'
         FROM generate_series(1, 1000) AS n;
         INSERT INTO jobwire.instance_lock (process_instance, job_id, fence)
         SELECT j.process_instance, l.job_id, l.fence
         FROM (SELECT process_instance, row_number() OVER () AS n FROM jobwire.job WHERE exclusive) j
         JOIN (SELECT job_id, fence, row_number() OVER () AS n FROM jobwire.job_lease) l USING (n)",
    )
    .await;
    let (keys, leases) = ("permit_key_pkey", "job_lease_pkey");
    let before = (index_reads(&w, keys).await, index_reads(&w, leases).await);
    for _ in 0..8 {
        assert!(w.store.claim(&terms, &page).await.unwrap().jobs.is_empty());
    }
    // A session reports its reads within ten seconds.
    eventually("the sessions to report their reads", SOON, async || {
        (index_reads(&w, keys).await - before.0 >= 8 * 200).then_some(())
    })
    .await;
    let keys = index_reads(&w, keys).await - before.0;
    let leases = index_reads(&w, leases).await - before.1;
    assert!(keys < 10 * 200 && leases < 20 * 200, "{keys} {leases}");
}

/// Its jobs are moved in pages, each in its own transaction. So it succeeds however many there are,
/// and what interrupts it undoes nothing.
#[tokio::test]
async fn a_suspension_that_is_interrupted_holds_and_another_one_moves_the_rest() {
    const JOBS: usize = 5_002;
    let w = World::<PgStore>::open().await;
    let later = || {
        work()
            .tenant("t")
            .delay(std::time::Duration::from_secs(3600))
    };
    w.create((1..JOBS).map(|_| later()).collect()).await;
    let hints = w.ready(vec![work().tenant("t").element("last")]).await;
    for statement in [
        "CREATE FUNCTION {s}refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'canceled' USING ERRCODE = 'query_canceled';
         END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON {s}suspended_job FOR EACH ROW
         WHEN (NEW.element = 'last') EXECUTE FUNCTION {s}refuse()",
    ] {
        w.store.execute(statement).await;
    }
    let tenant = SuspensionScope::Tenant("t".to_owned());
    assert!(w.store.suspend(&tenant).await.is_err());
    assert_eq!(w.rows("suspension").await, 1);
    assert_eq!(w.rows("suspended_job").await, 5_000);
    assert!(w.lock(node(), &hints).await.jobs.is_empty());
    w.store
        .execute("DROP TRIGGER refuse ON {s}suspended_job")
        .await;
    assert_eq!(w.store.suspend(&tenant).await.unwrap().moved, 2);
    let lifted = w.store.activate(&tenant).await.unwrap();
    assert_eq!(lifted.brought_back, JOBS as u64);
    assert_eq!(w.lock(node(), &hints).await.jobs.len(), 1);
}

#[tokio::test]
async fn a_suspension_that_ends_while_it_begins_moves_no_more_jobs() {
    let w = World::<PgStore>::open().await;
    let hints = w.ready(vec![work().tenant("t")]).await;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    w.store
        .execute("INSERT INTO {s}suspension (scope, value) VALUES ('tenant', 't')")
        .await;
    let mut end = w.store.pool().begin().await.unwrap();
    let held = sqlx::query("SELECT FROM jobwire.suspension FOR UPDATE");
    held.execute(&mut *end).await.unwrap();
    let end = async {
        until_waiting(&w.store, 1).await;
        let ended = sqlx::query("DELETE FROM jobwire.suspension");
        ended.execute(&mut *end).await.unwrap();
        end.commit().await.unwrap();
    };
    let (begun, ()) = tokio::join!(w.store.suspend(&tenant), end);
    assert_eq!(begun.unwrap().moved, 0);
    assert_eq!(w.lock(node(), &hints).await.jobs.len(), 1);
}
