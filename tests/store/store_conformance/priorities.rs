//! The priorities of jobs: the rules that give them, and changes of them.

use std::time::Duration;

use jobwire_core::job::scope::Scope;
use jobwire_core::producer::priority_cascade::{CascadeScope, PriorityCascade};
use jobwire_core::store::{Change, Handoff, Operated, PauseScope, SuspensionScope};
use jobwire_core::{
    BULK_TYPE, Batch, BatchId, BulkOperation, Client, CommitHook, Hint, JobDefinition, JobId,
    JobQuery, JobState, Lane, LaneRule, NewJob, PriorityRule, PriorityScope, StoreError,
};

use jobwire_harness::world::quick;

use super::bed::{Bed, noting};
use super::membership::membership;
use super::world::{Bench, SqlBench, World, done, ids, node, work};

fn mail() -> JobDefinition {
    JobDefinition::of("mail")
}

async fn set<S: Bench>(w: &World<S>, scope: PriorityScope, priority: i64) {
    let rule = PriorityRule::new(scope, priority);
    w.store.set_priority_rule(&rule).await.unwrap();
}

/// Creates a job, and returns its priority and its lane.
async fn created<S: Bench>(w: &World<S>, job: NewJob) -> (i64, String) {
    let id = job.id();
    w.create(vec![job]).await;
    of(w, id).await
}

async fn of<S: Bench>(w: &World<S>, id: JobId) -> (i64, String) {
    let view = w.view(id).await.unwrap();
    (view.priority, view.lane.to_string())
}

async fn change<S: Bench>(w: &World<S>, id: JobId, priority: i64) -> Vec<JobId> {
    let change = Change::SetPriority(priority);
    let changed = w.store.change_many(&[id], &change).await.unwrap();
    assert_eq!(changed.operated, [(id, Operated::Done)]);
    ids(&changed.ready)
}

pub(super) async fn the_first_rule_in_camundas_order_gives_the_priority<S: Bench>(w: &World<S>) {
    let job = || {
        NewJob::of("mail", &1)
            .process_definition("order:1")
            .element("notify")
    };
    let timer = || job().delay(Duration::from_secs(60));
    // From the last to the first.
    assert_eq!(created(w, job()).await.0, 0);
    set(w, PriorityScope::History, -9).await;
    set(w, PriorityScope::Default, 1).await;
    assert_eq!(created(w, job()).await.0, 1);
    assert_eq!(created(w, job().history()).await.0, -9);
    let definition = || PriorityScope::ProcessDefinition("order:1".to_owned());
    set(w, definition(), 2).await;
    assert_eq!(created(w, job()).await.0, 2);
    assert_eq!(created(w, NewJob::of("mail", &1)).await.0, 1);
    set(w, PriorityScope::Type("mail".to_owned()), 3).await;
    assert_eq!(created(w, job()).await.0, 3);
    assert_eq!(created(w, job().history()).await.0, 3);
    assert_eq!(created(w, timer()).await.0, 3);
    let own = || job().priority(0);
    assert_eq!(created(w, own()).await.0, 0, "zero is a priority, too");
    set(w, PriorityScope::Override(mail()), 4).await;
    assert_eq!(created(w, own()).await.0, 4);
    assert_eq!(created(w, timer().priority(99)).await.0, 4);
    assert_eq!(created(w, NewJob::of("fax", &1).priority(99)).await.0, 99);
    // Among overrides, one with more names.
    for (definition, priority) in [
        (mail().process_definition("order:1"), 5),
        (mail().process_definition("order:2"), 50),
        (mail().element("notify"), 6),
        (mail().process_definition("order:1").element("notify"), 7),
    ] {
        set(w, PriorityScope::Override(definition), priority).await;
        let expected = if priority == 50 { 5 } else { priority };
        assert_eq!(created(w, own()).await.0, expected);
    }
    // Many jobs in one statement get their own priorities each.
    let jobs = vec![job(), NewJob::of("mail", &1), NewJob::of("fax", &1)];
    let hints = w.ready(jobs).await;
    let mut priorities = Vec::new();
    for hint in &hints {
        priorities.push(of(w, hint.id).await.0);
    }
    assert_eq!(priorities, [7, 4, 1]);
}

pub(super) async fn a_cleared_rule_leaves_existing_jobs<S: Bench>(w: &World<S>) {
    let scope = || PriorityScope::Override(mail().element("notify"));
    let job = || NewJob::of("mail", &1).element("notify").priority(3);
    set(w, scope(), 10).await;
    set(w, scope(), 11).await;
    set(w, PriorityScope::Default, -1).await;
    let rules = [
        PriorityRule::new(PriorityScope::Default, -1),
        PriorityRule::new(scope(), 11),
    ];
    assert_eq!(w.store.priority_rules().await.unwrap(), rules);
    let hint = w.one(job()).await;
    assert!(w.store.clear_priority_rule(&scope()).await.unwrap());
    assert!(!w.store.clear_priority_rule(&scope()).await.unwrap());
    let other = PriorityScope::Override(mail());
    assert!(!w.store.clear_priority_rule(&other).await.unwrap());
    assert_eq!(of(w, hint.id).await.0, 11);
    assert_eq!(created(w, job()).await.0, 3);
    let bad = PriorityRule::new(PriorityScope::Type(String::new()), 1);
    let refused = w.store.set_priority_rule(&bad).await.unwrap_err();
    assert!(matches!(refused, StoreError::InvalidChange(_)), "{refused}");
    assert_eq!(w.store.priority_rules().await.unwrap(), rules[..1]);
}

pub(super) async fn a_priority_by_the_rules_chooses_the_lane<S: Bench>(w: &World<S>) {
    let urgent = LaneRule::to("urgent").min_priority(100);
    w.store.set_lane_rules(&[urgent]).await.unwrap();
    set(w, PriorityScope::Type("mail".to_owned()), 100).await;
    let new = w.create(vec![NewJob::of("mail", &1)]).await;
    assert_eq!(new.ready[0].lane.as_str(), "urgent");
    set(w, PriorityScope::Override(mail()), 99).await;
    let low = created(w, NewJob::of("mail", &1).priority(500)).await;
    assert_eq!(low, (99, "default".to_owned()));
}

pub(super) async fn the_rules_give_the_jobs_of_a_batch_their_priority<S: SqlBench>(w: &World<S>) {
    for (job_type, priority) in [("work", -5), ("at-end", -3), (BULK_TYPE, -7)] {
        set(w, PriorityScope::Type(job_type.to_owned()), priority).await;
    }
    let (plain, own) = (work(), work().priority(9));
    let members = [plain.id(), own.id()];
    let batch = Batch::named("b")
        .jobs([plain, own])
        .then(NewJob::of("at-end", &1));
    let client = Client::without_hints(w.store.clone());
    let batch = client.create_batch(batch).await.unwrap();
    assert_eq!(of(w, members[0]).await.0, -5);
    assert_eq!(of(w, members[1]).await.0, 9);
    for id in members {
        w.store.delete(id).await.unwrap();
    }
    w.store.end_batch(batch, &[]).await.unwrap().unwrap();
    let at_end = w.store.batch(batch).await.unwrap().unwrap().callback;
    assert_eq!(of(w, at_end).await.0, -3);
    let bulk = BulkOperation::delete(JobQuery::default()).job().unwrap();
    assert_eq!(created(w, bulk).await.0, -7);
}

/// Lanes by priority: `urgent` from 100, `bulk` below 0, otherwise `default`.
async fn lanes_by_priority<S: Bench>(w: &World<S>) {
    let rules = [
        LaneRule::to("urgent").min_priority(100),
        LaneRule::to("bulk").max_priority(-1),
    ];
    w.store.set_lane_rules(&rules).await.unwrap();
}

pub(super) async fn a_change_of_priority_moves_a_job_to_its_lane_unless_its_creator_named_it<
    S: Bench,
>(
    w: &World<S>,
) {
    lanes_by_priority(w).await;
    let hint = w.one(work()).await;
    w.make_old(60).await;
    let before = w.view(hint.id).await.unwrap();
    // In the same lane it is not hinted again: no node takes a range of priorities.
    assert!(change(w, hint.id, 50).await.is_empty());
    let same = w.view(hint.id).await.unwrap();
    assert_eq!((same.ready_at, same.hints), (before.ready_at, before.hints));
    let change_to = Change::SetPriority(100);
    let changed = w.store.change_many(&[hint.id], &change_to).await.unwrap();
    assert_eq!(ids(&changed.ready), [hint.id]);
    assert_eq!(changed.ready[0].lane.as_str(), "urgent");
    let moved = w.view(hint.id).await.unwrap();
    assert!(moved.ready_at > before.ready_at && moved.hints > before.hints);
    assert_eq!(of(w, hint.id).await, (100, "urgent".to_owned()));
    w.hold(node(), &hint).await;
    // A named lane stays, also that of a history job, and so does one that is not known.
    for job in [work().lane("default"), work().history()] {
        let hint = w.one(job).await;
        let lane = of(w, hint.id).await.1;
        assert!(change(w, hint.id, 100).await.is_empty());
        assert_eq!(of(w, hint.id).await, (100, lane));
    }
    // What waits elsewhere gets its lane without a hint.
    let timer = work().delay(Duration::from_secs(60));
    let id = timer.id();
    w.create(vec![timer]).await;
    assert!(change(w, id, -5).await.is_empty());
    assert_eq!(of(w, id).await, (-5, "bulk".to_owned()));
    for brought in [Change::Suspend, Change::MakeDeadLetter("x".to_owned())] {
        w.store.change_many(&[id], &brought).await.unwrap();
        let state = w.state(id).await;
        assert!(change(w, id, 7).await.is_empty());
        assert_eq!(w.state(id).await, state);
        assert_eq!(of(w, id).await, (7, "default".to_owned()));
        assert!(change(w, id, -5).await.is_empty());
    }
    // The lane was chosen by the rules through all these moves.
    let (_, ready) = w.store.retry(id, 3).await.unwrap();
    assert_eq!(ready[0].lane.as_str(), "bulk");
    assert_eq!(change(w, id, 0).await, [id]);
}

pub(super) async fn of_an_instance_and_of_suspended_jobs_only_what_may_run_is_hinted<S: Bench>(
    w: &World<S>,
) {
    lanes_by_priority(w).await;
    let of_order = || work().instance("order-1");
    let hints = w.ready(vec![of_order(), of_order(), of_order()]).await;
    let all: Vec<JobId> = hints.iter().map(|hint| hint.id).collect();
    let urgent = Change::SetPriority(100);
    let changed = w.store.change_many(&all, &urgent).await.unwrap();
    assert_eq!(changed.operated.len(), 3);
    assert_eq!(ids(&changed.ready), all[..1]);
    for id in &all {
        assert_eq!(of(w, *id).await.1, "urgent");
    }
    let scope = SuspensionScope::Tenant("t".to_owned());
    w.store.suspend(&scope).await.unwrap();
    let gated = w.one(work().tenant("t")).await;
    assert_eq!(w.state(gated.id).await, Some(JobState::Executable));
    assert!(change(w, gated.id, 100).await.is_empty());
    assert_eq!(of(w, gated.id).await.1, "urgent");
}

/// A pause of the former lane keeps no job that moves out of it, and one of the new lane does.
pub(super) async fn a_job_that_leaves_a_paused_lane_is_hinted<S: SqlBench>(w: &World<S>) {
    lanes_by_priority(w).await;
    let paused = PauseScope::Lane(Lane::default());
    w.store.pause(&paused).await.unwrap();
    let hint = w.one(work()).await;
    assert_eq!(change(w, hint.id, 100).await, [hint.id]);
    assert_eq!(of(w, hint.id).await.1, "urgent");
    assert!(change(w, hint.id, 0).await.is_empty(), "its lane is paused");
}

pub(super) async fn a_running_job_keeps_its_priority<S: Bench>(w: &World<S>) {
    lanes_by_priority(w).await;
    let hint = w.one(work()).await;
    let _job = w.hold(node(), &hint).await;
    let urgent = Change::SetPriority(100);
    let told = w.store.change_many(&[hint.id], &urgent).await.unwrap();
    assert_eq!(told.operated, [(hint.id, Operated::Running)]);
    assert_eq!(of(w, hint.id).await, (0, "default".to_owned()));
}

pub(super) async fn an_occurrence_has_the_priority_and_the_lane_of_the_one_before<S: Bench>(
    w: &World<S>,
) {
    lanes_by_priority(w).await;
    let hint = w.one(work().repeat_text("R3/PT10M")).await;
    change(w, hint.id, 100).await;
    set(w, PriorityScope::Override(JobDefinition::of("work")), 7).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    let next = jobwire_core::job::series::next_occurrence(
        &job.job,
        job.job.ready_at,
        &jobwire_core::Calendars::default(),
    )
    .unwrap();
    let id = next.id();
    let mut completion = done(&job);
    completion.next = Some(Box::new(next));
    w.store
        .complete(worker, &[completion], &Handoff::Hint)
        .await
        .unwrap();
    assert_eq!(of(w, id).await, (100, "urgent".to_owned()));
    // Its lane is still the rules' choice.
    change(w, id, -1).await;
    assert_eq!(of(w, id).await, (-1, "bulk".to_owned()));
}

pub(super) async fn an_override_cascades_to_all_but_running_jobs<S: Bench>(w: &World<S>) {
    lanes_by_priority(w).await;
    let notify = || work().element("notify");
    let timer = notify().delay(Duration::from_secs(60));
    let timer_id = timer.id();
    let jobs = vec![notify(), notify().priority(9), work(), notify(), notify()];
    let hints = w.ready(jobs).await;
    w.create(vec![timer]).await;
    let running = w.hold(node(), &hints[3]).await.job.id;
    change(w, hints[4].id, 100).await;
    let cascade = PriorityCascade {
        scope: CascadeScope::Definition(JobDefinition::of("work").element("notify")),
        priority: 100,
    };
    let hook = CommitHook::disconnected();
    let cascaded = cascade.run(&w.store, &hook).await.unwrap();
    assert_eq!((cascaded.changed, cascaded.running), (3, 1));
    assert!(cascaded.refused.is_empty());
    for id in [hints[0].id, hints[1].id, timer_id] {
        assert_eq!(of(w, id).await, (100, "urgent".to_owned()));
    }
    assert_eq!(of(w, hints[2].id).await.0, 0, "of another element");
    assert_eq!(of(w, running).await.0, 0);
    let again = cascade.run(&w.store, &hook).await.unwrap();
    assert_eq!((again.changed, again.running), (0, 1));
}

/// The job at the end of a batch inside is a member like any other, once it exists.
pub(super) async fn the_members_of_a_batch_and_of_those_inside_it_get_a_priority<S: SqlBench>(
    w: &World<S>,
) {
    lanes_by_priority(w).await;
    let client = Client::without_hints(w.store.clone());
    let (ready, named, held, kept) = (
        work().priority(3),
        work().lane("bulk"),
        work(),
        work().priority(100),
    );
    let timer = work().delay(Duration::from_secs(60));
    let (ready_id, named_id, timer_id) = (ready.id(), named.id(), timer.id());
    let held_hint = Hint::new(held.id());
    let outer = Batch::named("outer").jobs([ready, named, held, kept, timer]);
    let outer = client.create_batch(outer).await.unwrap();
    let (inside, elsewhere) = (work(), work());
    let (inside_id, elsewhere_id) = (inside.id(), elsewhere.id());
    let inner = Batch::named("inner").job(inside);
    let inner = inner.then(NewJob::of("at-end", &1).batch(outer));
    client.create_batch(inner).await.unwrap();
    client.create(elsewhere).await.unwrap();
    let running = w.hold(node(), &held_hint).await.job.id;

    let changed = client.set_batch_priority(outer, 100).await.unwrap();
    let changed = changed.expect("the batch");
    assert_eq!((changed.changed, changed.running), (4, 1), "{changed:?}");
    assert!(changed.refused.is_empty());
    for id in [ready_id, timer_id, inside_id] {
        assert_eq!(of(w, id).await, (100, "urgent".to_owned()));
    }
    assert_eq!(of(w, named_id).await, (100, "bulk".to_owned()));
    for id in [running, elsewhere_id] {
        assert_eq!(of(w, id).await, (0, "default".to_owned()));
    }
    // A batch has no rule.
    let late = work().batch(outer);
    assert_eq!(created(w, late).await.0, 0);
    let again = client.set_batch_priority(outer, 100).await.unwrap();
    assert_eq!(again.expect("the batch").changed, 1);
    let nobody = BatchId::generate();
    let none = client.set_batch_priority(nobody, 100).await.unwrap();
    assert_eq!(none, None);
}

/// Two rules for one job would stop its creation.
pub(super) async fn a_rule_whose_names_do_not_fit_its_scope_is_refused<S: SqlBench>(w: &World<S>) {
    for names in [
        "'default', '', 'order:3', ''",
        "'history', 'mail', '', ''",
        "'type', 'mail', 'order:3', ''",
        "'process_definition', 'mail', 'order:3', ''",
        "'process_definition', '', 'order:3', 'notify'",
    ] {
        let columns = "(scope, type, process_definition, element, priority, since)";
        let row = format!("INSERT INTO {{s}}priority_rule {columns} VALUES ({names}, 7, {{now}})");
        let refused = w.store.try_execute(&row).await.unwrap_err().to_string();
        assert!(refused.contains("names_fit_the_scope"), "{refused}");
    }
    w.ready(vec![work()]).await;
}

/// Those that keep their priority do not stop the cascade, and are read once.
pub(super) async fn a_cascade_goes_through_many_pages<S: Bench>(w: &World<S>) {
    let special = PriorityScope::Override(JobDefinition::of("work").element("notify"));
    set(w, special, 500).await;
    let special = (0..600).map(|_| work().element("notify"));
    w.create(special.collect()).await;
    w.create((0..600).map(|_| work()).collect()).await;
    let cascade = PriorityCascade {
        scope: CascadeScope::Definition(JobDefinition::of("work")),
        priority: 1,
    };
    let hook = CommitHook::disconnected();
    let cascaded = cascade.run(&w.store, &hook).await.unwrap();
    assert_eq!(cascaded.changed, 600);
    let of_priority = |n| JobQuery::default().min_priority(n).max_priority(n);
    assert_eq!(w.store.count(&of_priority(1)).await.unwrap(), 600);
    assert_eq!(w.store.count(&of_priority(500)).await.unwrap(), 600);
}

pub(super) async fn a_cascade_leaves_jobs_with_a_more_specific_override<S: Bench>(w: &World<S>) {
    let special = PriorityScope::Override(JobDefinition::of("work").element("notify"));
    let special = PriorityRule::new(special, 500);
    w.store.set_priority_rule(&special).await.unwrap();
    let hints = w.ready(vec![work().element("notify"), work()]).await;
    let cascade = PriorityCascade {
        scope: CascadeScope::Definition(JobDefinition::of("work")),
        priority: 1,
    };
    let hook = CommitHook::disconnected();
    let cascaded = cascade.run(&w.store, &hook).await.unwrap();
    assert_eq!(cascaded.changed, 1);
    assert_eq!(of(w, hints[0].id).await.0, 500);
    assert_eq!(of(w, hints[1].id).await.0, 1);
}

/// The lane of a row that an older program wrote, or moved, is not known to be named.
pub(super) async fn a_lane_that_may_have_been_named_stays<S: SqlBench>(w: &World<S>) {
    lanes_by_priority(w).await;
    let hint = w.one(work()).await;
    w.store.execute("UPDATE {s}job SET lane_named = NULL").await;
    assert!(change(w, hint.id, 100).await.is_empty());
    assert_eq!(of(w, hint.id).await, (100, Lane::default().to_string()));
}

/// The node that takes the new priority may have refused its hint.
pub(super) async fn a_job_that_stays_in_its_lane_is_hinted_again_if_nodes_take_ranges_of_priorities<
    S: SqlBench,
>(
    w: &World<S>,
) {
    lanes_by_priority(w).await;
    let urgent = node();
    let mut row = membership(urgent);
    row.scope = Scope::default().min_priority(50);
    w.store.write_node(&row).await.unwrap();
    let hint = w.one(work()).await;
    w.make_old(60).await;
    let before = w.view(hint.id).await.unwrap();
    assert_eq!(change(w, hint.id, 60).await, [hint.id]);
    let again = w.view(hint.id).await.unwrap();
    assert_eq!(again.lane, before.lane);
    assert!(again.ready_at > before.ready_at && again.hints > before.hints);
    assert!(change(w, hint.id, 60).await.is_empty(), "it is the same");
    let named = w.one(work().lane("elsewhere")).await;
    assert_eq!(change(w, named.id, 60).await, [named.id]);
    // A timer is not ready, the second job of an instance comes later, and a pause keeps what is paused.
    let timer = work().delay(Duration::from_secs(60));
    let id = timer.id();
    w.create(vec![timer]).await;
    assert!(change(w, id, 60).await.is_empty());
    let siblings = w
        .ready(vec![work().instance("a"), work().instance("a")])
        .await;
    assert!(change(w, siblings[1].id, 60).await.is_empty());
    assert_eq!(change(w, siblings[0].id, 60).await, [siblings[0].id]);
    let paused = PauseScope::Lane(Lane::default());
    w.store.pause(&paused).await.unwrap();
    assert!(change(w, hint.id, 70).await.is_empty());
    w.store.resume(&paused).await.unwrap();
    // Any end of a range counts, and only while there is a node that has one.
    row.scope = Scope::default().max_priority(99);
    w.store.write_node(&row).await.unwrap();
    assert_eq!(change(w, hint.id, 60).await, [hint.id]);
    row.scope = Scope::default();
    w.store.write_node(&row).await.unwrap();
    assert!(change(w, hint.id, 70).await.is_empty());
}

/// The node has refused the hint of the creation, and does not sweep.
pub(super) async fn a_job_that_is_made_urgent_starts_on_the_node_that_takes_its_priority<
    S: SqlBench,
>(
    w: &World<S>,
) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let bed = Bed::new(w);
    let mut options = quick().scope(Scope::default().min_priority(10));
    options.sweep_interval = HOUR;
    options.suspect_after = HOUR;
    let node = bed.node(options).handler("note", noting(&bed.notes));
    let node = node.start().await.unwrap();
    let note = |what: &str, priority| NewJob::of("note", what).priority(priority);
    // The only leader cycle is over by the end of the first one, and the hint of the second one was
    // tried by the end of the third one.
    bed.create(vec![note("first", 10)]).await;
    bed.notes.until(1).await;
    let made_urgent = bed.create(vec![note("made urgent", 0)]).await;
    bed.create(vec![note("third", 10)]).await;
    assert_eq!(bed.notes.until(2).await, ["first", "third"]);
    let urgent = Change::SetPriority(10);
    bed.client.change(&made_urgent, &urgent).await.unwrap();
    bed.until_left(0).await;
    assert_eq!(bed.notes.all(), ["first", "third", "made urgent"]);
    node.stop().await;
}
