//! The rows of the nodes, and the scope of a node.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::job::scope::{Group, Needs, Scope, Services};
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{LockTerms, Membership, NodeView, OrphanQuery, Refusal, services_of};
use jobwire_core::{Lane, NodeId};

use super::world::{Bench, SqlBench, World, ids, job_ids, node, terms, why, work};

pub(super) fn membership(id: NodeId) -> Membership {
    Membership {
        id,
        revision: 1,
        types: vec!["mail".to_owned(), "fax".to_owned()],
        lanes: vec![Lane::default(), Lane::unchecked("bulk")],
        scope: Scope::default().tenants(["acme"]).deployments(["d1", "d2"]),
        host: "host-1".to_owned(),
        version: "1.2.3".to_owned(),
        transport: "test".to_owned(),
        attempts_kept: [("mail".to_owned(), Duration::from_millis(1_500))].into(),
    }
}

fn of(nodes: &[NodeView]) -> Vec<&Membership> {
    nodes.iter().map(|node| &node.membership).collect()
}

pub(super) async fn a_row_says_what_its_node_takes<S: Bench>(w: &World<S>) {
    let mut it = membership(node());
    w.store.write_node(&it).await.unwrap();
    let nodes = w.store.nodes().await.unwrap();
    assert_eq!(of(&nodes), [&it]);
    assert!(nodes[0].lives());
    let started_at = nodes[0].started_at;
    it.revision = 2;
    it.types = vec!["print".to_owned()];
    it.attempts_kept = AttemptsKept::new();
    it.scope = Scope::default().min_priority(-7).max_priority(i64::MAX);
    w.store.write_node(&it).await.unwrap();
    assert_eq!(of(&w.store.nodes().await.unwrap()), [&it]);
    it.scope = Scope::default();
    w.store.write_node(&it).await.unwrap();
    let nodes = w.store.nodes().await.unwrap();
    assert_eq!(of(&nodes), [&it]);
    assert_eq!(nodes[0].started_at, started_at);
    assert_eq!(*services_of(&nodes).types, ["print"]);
    w.store.remove_node(it.id).await.unwrap();
    assert!(w.store.nodes().await.unwrap().is_empty());
    // The node was taken for dead, but lives.
    w.store.write_node(&it).await.unwrap();
    assert_eq!(of(&w.store.nodes().await.unwrap()), [&it]);
}

pub(super) async fn rows_of_silent_nodes_are_removed_but_not_of_those_that_are_heard<S: Bench>(
    w: &World<S>,
) {
    let (heard, silent) = (node(), node());
    for id in [heard, silent] {
        w.store.write_node(&membership(id)).await.unwrap();
    }
    let listed = [heard];
    let remove = |after| w.store.remove_silent_nodes(after, &listed);
    assert_eq!(remove(Duration::from_secs(60)).await.unwrap(), 0);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(remove(Duration::from_millis(10)).await.unwrap(), 1);
    assert_eq!(of(&w.store.nodes().await.unwrap()), [&membership(heard)]);
}

/// Moves the dates of the rows of nodes with this host ahead, by so many seconds.
async fn move_ahead<S: SqlBench>(w: &World<S>, host: &str, seconds: u32) {
    let sql = format!(
        "UPDATE {{s}}node SET seen_at = {{now}} + {seconds} * {{second}} WHERE host = '{host}'"
    );
    w.store.execute(&sql).await;
}

/// The clock of the database was set back by ten minutes.
pub(super) async fn a_node_whose_row_is_from_the_future_is_read_and_a_heard_one_is_kept<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let (heard, unheard) = (node(), node());
    for id in [heard, unheard] {
        w.store.write_node(&membership(id)).await.unwrap();
    }
    move_ahead(w, "host-1", 600).await;
    let nodes = w.store.nodes().await.unwrap();
    let read: HashSet<NodeId> = nodes.iter().map(|node| node.membership.id).collect();
    assert_eq!(read, HashSet::from([heard, unheard]));
    // Who hears no node takes such a date for no sign of life.
    assert!(nodes.iter().all(|node| !node.lives()), "{nodes:?}");
    let listed = [heard];
    let minute = Duration::from_secs(60);
    let removed = w.store.remove_silent_nodes(minute, &listed).await.unwrap();
    assert_eq!(removed, 1);
    assert_eq!(of(&w.store.nodes().await.unwrap()), [&membership(heard)]);
    // The clock was set back by less.
    move_ahead(w, "host-1", 240).await;
    assert!(w.store.nodes().await.unwrap()[0].lives());
}

pub(super) async fn thousands_of_rows_from_the_future_hide_no_node<S: SqlBench>(w: &World<S>) {
    let honest = node();
    let mut forged = membership(node());
    forged.host = "forged".to_owned();
    w.store.write_node(&membership(honest)).await.unwrap();
    w.store.write_node(&forged).await.unwrap();
    for seconds in [10, 600] {
        let (id, n) = match w.store.name() {
            "sqlite" => (
                "lower(hex(randomblob(4))) || '-0000-7000-8000-' || lower(hex(randomblob(6)))",
                "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n)",
            ),
            _ => ("gen_random_uuid()", "generate_series(1, 5000)"),
        };
        let forge = format!(
            "INSERT INTO {{s}}node (id, revision, types, lanes, host, version, transport, started_at, seen_at)
             SELECT {id}, revision, types, lanes, host, version, transport, started_at, seen_at
             FROM {{s}}node, {n} AS g WHERE id = '{}'",
            forged.id
        );
        assert_eq!(w.store.execute(&forge).await, 5_000);
        move_ahead(w, "forged", seconds).await;
        let nodes = w.store.nodes().await.unwrap();
        assert_eq!(nodes[0].membership, membership(honest));
    }
    // They are removed at the latest when no beat of them is heard.
    let removed = w.store.remove_silent_nodes(Duration::from_secs(60), &[]);
    assert_eq!(removed.await.unwrap(), 10_001);
}

/// Their names have a megabyte in all, which the tables of PostgreSQL allow. One row is larger.
pub(super) async fn large_rows_of_nodes_take_no_memory_and_hide_no_smaller_one<S: SqlBench>(
    w: &World<S>,
) {
    const ROW: usize = 2 << 20;
    const ALL: usize = 32 << 20;
    let (honest, large) = (node(), membership(node()));
    w.store.write_node(&membership(honest)).await.unwrap();
    w.store.write_node(&large).await.unwrap();
    let (id, types, n, larger) = match w.store.name() {
        "sqlite" => (
            "lower(hex(randomblob(4))) || '-0000-7000-8000-' || lower(hex(randomblob(6)))",
            "json_array(hex(zeroblob(520000)))",
            "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60) SELECT i FROM n)",
            "types = json_array(hex(zeroblob(3000000)))",
        ),
        _ => (
            "gen_random_uuid()",
            "ARRAY[repeat('x', 1040000)]",
            "generate_series(1, 60)",
            "attempts_kept = jsonb_build_object(repeat('x', 6000000), 1000)",
        ),
    };
    let forge = format!(
        "INSERT INTO {{s}}node (id, revision, types, lanes, host, version, transport, started_at, seen_at)
         SELECT {id}, revision, {types}, lanes, host, version, transport, started_at, seen_at
         FROM {{s}}node, {n} AS g WHERE id = '{}'",
        large.id
    );
    assert_eq!(w.store.execute(&forge).await, 60);
    let larger = format!("UPDATE {{s}}node SET {larger} WHERE id = '{}'", large.id);
    assert_eq!(w.store.execute(&larger).await, 1);
    let nodes = w.store.nodes().await.unwrap();
    let read = of(&nodes);
    assert!(read.contains(&&membership(honest)), "{}", read.len());
    assert!(!read.iter().any(|node| node.id == large.id));
    let bytes = |node: &&Membership| node.types.iter().map(String::len).sum::<usize>();
    let sizes: Vec<usize> = read.iter().map(bytes).collect();
    assert!(sizes.iter().all(|size| *size <= ROW), "{sizes:?}");
    let all: usize = sizes.iter().sum();
    assert!((ALL / 2..=ALL).contains(&all), "{sizes:?}");
}

fn scoped(owner: NodeId, scope: Scope) -> LockTerms {
    LockTerms {
        scope: Arc::new(scope),
        ..terms(owner)
    }
}

pub(super) async fn a_node_locks_jobs_of_its_scope_only<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![
            work().tenant("acme"),
            work().tenant("initech"),
            work(),
            work().tenant("acme").deployment("d9"),
            work().tenant("acme").deployment("d1").category("night"),
            work().tenant("initech").instance("order-1"),
        ])
        .await;
    let owner = node();
    let scope = Scope::default().tenants(["acme"]).deployments(["d1"]);
    let terms = scoped(owner, scope);
    let locked = w.store.lock(&terms, &hints).await.unwrap();
    let mut got = job_ids(&locked.jobs);
    got.sort_unstable();
    assert_eq!(got, [hints[0].id, hints[2].id, hints[4].id]);
    for hint in [&hints[1], &hints[3], &hints[5]] {
        assert_eq!(why(&locked, hint.id), Some(Refusal::Unserved));
    }
    let unserved: HashSet<Option<String>> = locked
        .unserved
        .iter()
        .map(|(_, needs)| needs.tenant.clone())
        .collect();
    assert!(
        unserved.contains(&Some("initech".to_owned())),
        "{unserved:?}"
    );
    // A node that takes all jobs takes these too.
    let rest = w.lock(node(), &hints).await;
    assert_eq!(rest.jobs.len(), 3);
}

pub(super) async fn a_job_that_no_group_of_nodes_takes_is_gated<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![
            work().tenant("acme"),
            work().tenant("initech"),
            work(),
        ])
        .await;
    w.make_old(60).await;
    let types: Vec<String> = terms(node()).types.to_vec();
    let scope = Scope::default().tenants(["acme"]);
    let group = Group {
        types: types.clone(),
        scope,
    };
    let services = Services::of(vec![group]);
    assert!(!services.serve(&Needs {
        tenant: Some("initech".to_owned()),
        ..Needs::of(&types[0])
    }));
    let now = w.store.move_due_timers(0).await.unwrap().now;
    let before = now - Duration::from_secs(30);
    let query = OrphanQuery::new(Lane::default(), services, before, 100);
    let found = ids(&w.store.orphans(&query).await.unwrap().ready);
    assert_eq!(found, [hints[0].id, hints[2].id]);
    let query = OrphanQuery::new(Lane::default(), types, before, 100);
    assert_eq!(w.store.orphans(&query).await.unwrap().ready.len(), 3);
}

pub(super) async fn a_node_locks_jobs_of_its_priorities_only<S: Bench>(w: &World<S>) {
    let priorities = [i64::MIN, 9, 10, 20, 21, 15];
    let jobs = priorities.map(|priority| work().priority(priority));
    let [a, b, c, d, e, f] = jobs;
    let hints = w.ready(vec![a, b, c, d, e, f.instance("order-1")]).await;
    let owner = node();
    let terms = scoped(owner, Scope::default().min_priority(10).max_priority(20));
    let locked = w.store.lock(&terms, &hints).await.unwrap();
    let mut got = job_ids(&locked.jobs);
    got.sort_unstable();
    assert_eq!(got, [hints[2].id, hints[3].id, hints[5].id]);
    for at in [0, 1, 4] {
        assert_eq!(why(&locked, hints[at].id), Some(Refusal::Unserved), "{at}");
    }
    // The refusal tells the priority, so that the hint is forwarded to a node that takes it.
    let needs: HashSet<Option<i64>> = locked.unserved.iter().map(|(_, n)| n.priority).collect();
    assert_eq!(needs, HashSet::from([Some(i64::MIN), Some(9), Some(21)]));
    let below = scoped(node(), Scope::default().max_priority(9));
    let locked = w.store.lock(&below, &hints).await.unwrap();
    assert_eq!(locked.jobs.len(), 2);
}

pub(super) async fn a_priority_that_no_group_of_nodes_takes_is_gated<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![work().priority(5), work(), work().priority(-5)])
        .await;
    w.make_old(60).await;
    let types: Vec<String> = terms(node()).types.to_vec();
    let group = |scope| Group {
        types: types.clone(),
        scope,
    };
    let services = Services::of(vec![
        group(Scope::default().min_priority(1)),
        group(Scope::default().max_priority(-1)),
    ]);
    assert_eq!(services.priority_gaps().len(), 1);
    let now = w.store.move_due_timers(0).await.unwrap().now;
    let before = now - Duration::from_secs(30);
    let query = OrphanQuery::new(Lane::default(), services, before, 100);
    let found = ids(&w.store.orphans(&query).await.unwrap().ready);
    assert_eq!(found, [hints[0].id, hints[2].id]);
}
