use std::sync::Arc;
use std::time::Duration;

use jobwire_core::job::scope::{Group, Scope, Services};
use jobwire_core::store::{CycleOutcome, LockTerms, OrphanQuery, SuspensionScope};
use jobwire_core::{JobId, Lane, NewJob};
use jobwire_harness::eventually;

use super::world::{Bench, LEADER, SqlBench, World, ids, node, terms, unserved, work};
use jobwire_harness::world::SOON;

/// In seconds: longer than a case takes on any machine, and less than a minute, beyond which no
/// young id is looked at.
const LONG: u64 = 50;

/// Returns the query for jobs that were ready this long ago and are not under way.
async fn query<S: Bench>(w: &World<S>, seconds_ago: u64, mark: bool) -> OrphanQuery {
    let now = w.store.move_due_timers(0).await.unwrap().now;
    let before = now - Duration::from_secs(seconds_ago);
    let mut query = OrphanQuery::new(Lane::default(), terms(node()).types, before, 100);
    query.whole = false;
    query.mark = mark;
    query
}

async fn orphans<S: Bench>(w: &World<S>, seconds_ago: u64, mark: bool) -> Vec<JobId> {
    let query = query(w, seconds_ago, mark).await;
    ids(&w.store.orphans(&query).await.unwrap().ready)
}

pub(super) async fn what_became_ready_just_now_is_not_suspected<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    assert!(orphans(w, LONG, false).await.is_empty());
    // A job with an old id that became ready a moment ago is not old.
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.make_old(60).await;
    w.release(worker, job.held()).await;
    assert!(orphans(w, LONG, false).await.is_empty());
}

pub(super) async fn what_is_old_and_unlocked_is_suspected<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![work(), work().instance("a"), work().lane("fast")])
        .await;
    w.make_old(60).await;
    w.one(work()).await;
    for _ in 0..2 {
        assert_eq!(orphans(w, LONG, false).await, [hints[0].id, hints[1].id]);
    }
    let other_lane = OrphanQuery {
        lane: Lane::unchecked("fast"),
        ..query(w, LONG, false).await
    };
    let found = w.store.orphans(&other_lane).await.unwrap().ready;
    assert_eq!(ids(&found), [hints[2].id]);
    assert_eq!(found[0].lane.as_str(), "fast");
}

/// The creator's clock was an hour ahead.
pub(super) async fn an_id_from_the_future_is_found_in_the_whole_table<S: SqlBench>(w: &World<S>) {
    w.one(work()).await;
    let ahead = chrono::Utc::now() + chrono::Duration::hours(1);
    let millis = ahead.timestamp_millis().cast_unsigned();
    let id = uuid::Uuid::from_u128(u128::from(millis) << 80 | 0x7000_8000_0000_0000_0017);
    let sql = format!("UPDATE {{s}}job SET id = '{id}'");
    assert_eq!(w.store.execute(&sql).await, 1);
    w.make_old(600).await;
    assert!(orphans(w, LONG, false).await.is_empty());
    let mut whole = query(w, LONG, true).await;
    whole.whole = true;
    assert_eq!(
        ids(&w.store.orphans(&whole).await.unwrap().ready),
        [JobId::from_uuid(id)]
    );
}

/// The database's clock was an hour ahead when the job became ready, and was set back.
pub(super) async fn a_job_that_became_ready_in_the_future_is_suspected<S: SqlBench>(w: &World<S>) {
    let hint = w.one(work()).await;
    w.make_old(60).await;
    let ahead = "UPDATE {s}job SET ready_at = {now} + 3600 * {second}";
    assert_eq!(w.store.execute(ahead).await, 1);
    assert_eq!(orphans(w, LONG, true).await, [hint.id]);
    assert!(orphans(w, LONG, true).await.is_empty(), "it was marked");
}

pub(super) async fn what_is_gated_is_not_suspected<S: Bench>(w: &World<S>) {
    let suspended = SuspensionScope::Tenant("t".to_owned());
    w.store.suspend(&suspended).await.unwrap();
    let hints = w
        .ready(vec![
            work(),
            work().tenant("t"),
            work().instance("a"),
            work().instance("a"),
            unserved(),
        ])
        .await;
    let worker = node();
    w.lock(worker, &[hints[0].clone(), hints[2].clone()]).await;
    w.make_old(60).await;
    assert!(orphans(w, LONG, false).await.is_empty());
    // A lease without an owner hides no job.
    w.die(hints[0].id).await;
    w.die(hints[2].id).await;
    w.make_old(60).await;
    assert_eq!(orphans(w, LONG, false).await, [hints[0].id, hints[2].id]);
}

pub(super) async fn jobs_that_no_node_takes_are_counted_by_type<S: Bench>(w: &World<S>) {
    let suspended = SuspensionScope::Tenant("t".to_owned());
    w.store.suspend(&suspended).await.unwrap();
    let of = |name: &str| NewJob::of(name, &());
    let hints = w
        .ready(vec![work(), of("fax"), of("fax"), of("mail"), of("print")])
        .await;
    w.create(vec![of("fax").tenant("t")]).await;
    // A job without a hint counts: the leader gives it none until a node takes it.
    w.store.create_by_sql("telex").await;
    let every: Arc<[String]> = Arc::from(["print".to_owned()]);
    let printer = LockTerms {
        types: every,
        ..terms(node())
    };
    w.store.lock(&printer, &hints[4..]).await.unwrap();
    let found = |services: Services, limit| async move {
        let found = w.store.unserved_types(&services, limit).await.unwrap();
        let found = found.into_iter().map(|of| (of.job_type, of.jobs));
        found.collect::<Vec<_>>()
    };
    let pairs = |expected: &[(&str, i64)]| -> Vec<(String, i64)> {
        let owned = expected
            .iter()
            .map(|(name, jobs)| ((*name).to_owned(), *jobs));
        owned.collect()
    };
    let services = || Services::from(terms(node()).types);
    assert_eq!(
        found(services(), 10).await,
        pairs(&[("fax", 2), ("mail", 1), ("telex", 1)])
    );
    assert_eq!(found(services(), 1).await, pairs(&[("fax", 2)]));
    let all = ["work", "fax", "mail", "telex"].map(str::to_owned).to_vec();
    assert!(found(all.into(), 10).await.is_empty());
}

/// The nodes serve their type, and not their tenant, category, deployment or priority.
pub(super) async fn jobs_whose_scope_no_node_takes_are_counted<S: Bench>(w: &World<S>) {
    let others = [
        work().tenant("initech"),
        work().category("mail"),
        work().deployment("d2"),
        work().priority(-5),
    ];
    w.ready(others.into_iter().chain([work()]).collect()).await;
    let scope = Scope::default()
        .tenants(["acme"])
        .categories(["fax"])
        .deployments(["d1"])
        .min_priority(0);
    let group = Group {
        types: terms(node()).types.to_vec(),
        scope,
    };
    let services = Services::of(vec![group]);
    let found = w.store.unserved_types(&services, 10).await.unwrap();
    assert_eq!(found.iter().map(|of| of.jobs).collect::<Vec<_>>(), [4]);
    // The priority is told as a gap, and not as a name.
    let named: Vec<String> = found[0].scopes.iter().map(ToString::to_string).collect();
    let expected = [
        "category mail (1)",
        "deployment d2 (1)",
        "tenant initech (1)",
    ];
    let mut sorted = named.clone();
    sorted.sort();
    assert_eq!(sorted, expected, "{named:?}");
    let lanes = [Lane::default()];
    let sweepable = w.store.sweepable(&services, &lanes).await.unwrap();
    assert_eq!((sweepable.unserved, sweepable.ready), (4, 1));
}

pub(super) async fn the_names_that_no_node_takes_are_counted_with_their_jobs<S: Bench>(
    w: &World<S>,
) {
    let fax = || NewJob::of("fax", &()).tenant("initech");
    let both = || work().tenant("initech").category("mail");
    w.ready(vec![
        work().tenant("initech"),
        both(),
        both(),
        // A name that some node takes is no reason.
        work().tenant("acme").category("mail"),
        // No node serves the type, so its tenant is no reason either.
        fax(),
        fax(),
    ])
    .await;
    let group = Group {
        types: terms(node()).types.to_vec(),
        scope: Scope::default().tenants(["acme"]).categories(["fax"]),
    };
    let found = async |limit| {
        let services = Services::of(vec![group.clone()]);
        let found = w.store.unserved_types(&services, limit).await.unwrap();
        let said = found.into_iter().map(|of| {
            let scopes: Vec<String> = of.scopes.iter().map(ToString::to_string).collect();
            format!("{} {}: {}", of.jobs, of.job_type, scopes.join(", "))
        });
        said.collect::<Vec<_>>()
    };
    let scopes = "tenant initech and category mail (2), category mail (1), tenant initech (1)";
    let work = format!("4 work: {scopes}");
    let in_order = found(10).await;
    // Scopes with equally many jobs have no order.
    let other = "tenant initech and category mail (2), tenant initech (1), category mail (1)";
    assert!(
        in_order == [&*work, "2 fax: "] || in_order == [&*format!("4 work: {other}"), "2 fax: "],
        "{in_order:?}"
    );
    assert_eq!(found(1).await, in_order[..1]);
}

pub(super) async fn a_dry_run_counts_jobs_in_lanes_that_no_node_receives_apart<S: Bench>(
    w: &World<S>,
) {
    let bulk = |job: NewJob| job.lane("bulk");
    w.ready(vec![
        work(),
        bulk(work()),
        bulk(work().instance("a")),
        bulk(work().instance("a")),
        bulk(unserved()),
    ])
    .await;
    let services = Services::from(terms(node()).types);
    let counted = async |received: &[Lane]| {
        let of = w.store.sweepable(&services, received).await.unwrap();
        [of.ready, of.instance_held, of.unserved, of.unreceived]
    };
    let bulk = Lane::unchecked("bulk");
    assert_eq!(counted(&[Lane::default()]).await, [1, 0, 1, 3]);
    assert_eq!(counted(&[Lane::default(), bulk]).await, [3, 1, 1, 0]);
}

pub(super) async fn only_the_first_sibling_is_suspected<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![
            work().instance("a"),
            work().instance("a"),
            work().instance("b"),
        ])
        .await;
    w.make_old(60).await;
    assert_eq!(orphans(w, LONG, false).await, [hints[0].id, hints[2].id]);
}

pub(super) async fn a_marked_orphan_waits_before_the_next_suspicion<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    w.make_old(60).await;
    assert_eq!(orphans(w, LONG, true).await, [hint.id]);
    assert!(orphans(w, LONG, true).await.is_empty());
    w.make_old(200).await;
    assert_eq!(orphans(w, LONG, true).await, [hint.id]);
    // The delay grows with each hint in vain: it is five minutes longer now.
    for _ in 0..4 {
        w.make_old(6_000).await;
        assert_eq!(orphans(w, LONG, true).await, [hint.id]);
    }
    w.make_old(200).await;
    assert!(orphans(w, LONG, true).await.is_empty());
    w.make_old(300).await;
    assert_eq!(orphans(w, LONG, true).await, [hint.id]);
}

pub(super) async fn orphans_are_paged_by_id<S: Bench>(w: &World<S>) {
    let hints = w.ready((0..5).map(|_| work()).collect()).await;
    let mut made: Vec<JobId> = hints.iter().map(|h| h.id).collect();
    made.sort_unstable();
    w.make_old(60).await;
    let mut question = query(w, LONG, true).await;
    question.limit = 2;
    let mut found = Vec::new();
    loop {
        let page = ids(&w.store.orphans(&question).await.unwrap().ready);
        question.after = page.last().copied();
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    assert_eq!(found, made);
}

/// All these rows claim an old time. A transaction that was open when the marker left may have
/// written them.
pub(super) async fn what_an_open_transaction_may_have_written_is_not_suspected<S: SqlBench>(
    w: &World<S>,
) {
    let horizon = async || {
        let CycleOutcome::Leads(report) = w.turn(LEADER).await else {
            panic!("no other node leads");
        };
        report.horizon
    };
    let found = async |query: &OrphanQuery| w.store.orphans(query).await.unwrap().ready.len();
    w.one(work()).await;
    w.make_old(60).await;
    let mut query = query(w, LONG, false).await;
    // Transactions of other tests count too.
    query.horizon = eventually("the transaction to have ended", SOON, async || {
        let mut query = query.clone();
        query.horizon = horizon().await;
        (found(&query).await == 1).then_some(query.horizon)
    })
    .await;
    // The marker leaves, and the rows are written again.
    w.make_old(60).await;
    let known = usize::from(query.horizon.is_none());
    assert_eq!(found(&query).await, known);
    w.make_old(600).await;
    assert_eq!(found(&query).await, 1, "ready for ten minutes");
    // A job of before the clock was set back, written after the marker has left.
    let ahead = "UPDATE {s}job SET ready_at = {now} + 3600 * {second}";
    assert_eq!(w.store.execute(ahead).await, 1);
    assert_eq!(found(&query).await, known);
}

/// The hints of these jobs are on a node.
pub(super) async fn what_a_node_holds_is_not_suspected<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work(), work()]).await;
    w.make_old(60).await;
    let mut query = query(w, LONG, true).await;
    query.held = [hints[0].id, hints[2].id].into();
    let found = w.store.orphans(&query).await.unwrap().ready;
    assert_eq!(ids(&found), [hints[1].id]);
}
