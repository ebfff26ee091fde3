use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::store::{Handoff, LanePage, MovedPage, Origin, SuspensionScope};
use jobwire_core::{
    CommitHook, JobId, JobQuery, JobState, Lane, LaneMove, LaneRule, NewJob, StoreError,
};

use super::world::{Bench, World, done, give_up, ids, node, retry_after, work};

fn lane(name: &str) -> Lane {
    Lane::unchecked(name)
}

/// Priority first, then type and tenant, then category.
fn rules() -> Vec<LaneRule> {
    vec![
        LaneRule::to("critical").min_priority(100),
        LaneRule::to("tenant-a").job_type("work").tenant("a"),
        LaneRule::to("mail").category("mail").max_priority(10),
        LaneRule::to("bulk").max_priority(-1),
    ]
}

async fn lane_of<S: Bench>(w: &World<S>, id: JobId) -> String {
    w.view(id).await.unwrap().lane.to_string()
}

pub(super) async fn the_first_rule_that_fits_chooses_the_lane<S: Bench>(w: &World<S>) {
    w.store.set_lane_rules(&rules()).await.unwrap();
    assert_eq!(w.store.lane_rules().await.unwrap(), rules());
    let cases = [
        (work().priority(100).tenant("a"), "critical"),
        (work().priority(99).tenant("a").category("mail"), "tenant-a"),
        (NewJob::of("other-work", &1).tenant("a"), "default"),
        (work().category("mail").priority(10), "mail"),
        (work().category("mail").priority(11), "default"),
        (work().category("mail").priority(-5), "mail"),
        (work().priority(-1), "bulk"),
        (work(), "default"),
        // A lane that the creator gives is kept.
        (work().priority(500).lane("own"), "own"),
        (work().priority(500).lane("default"), "default"),
    ];
    let jobs: Vec<NewJob> = cases.iter().map(|(job, _)| job.clone()).collect();
    let expected: Vec<(JobId, &str)> = cases.iter().map(|(job, l)| (job.id(), *l)).collect();
    let created = w.create(jobs).await;
    let hinted: Vec<(JobId, &str)> = created
        .ready
        .iter()
        .map(|ready| (ready.hint.id, ready.lane.as_str()))
        .collect();
    assert_eq!(hinted, expected, "the hint goes to the lane of the row");
    for (id, name) in expected {
        assert_eq!(lane_of(w, id).await, name);
    }
}

pub(super) async fn a_timer_gets_its_lane_when_it_is_created<S: Bench>(w: &World<S>) {
    w.store.set_lane_rules(&rules()).await.unwrap();
    let timer = work().priority(-1).delay(Duration::from_secs(60));
    let (id, now) = (timer.id(), work().priority(-1));
    let created = w.create(vec![timer, now]).await;
    assert_eq!(created.ready.len(), 1);
    assert_eq!(lane_of(w, id).await, "bulk");
    // New rules apply to new jobs only.
    w.store.set_lane_rules(&[]).await.unwrap();
    w.make_due(id, 1).await;
    let moved = w.store.move_due_timers(10).await.unwrap();
    assert_eq!(moved.ready[0].lane.as_str(), "bulk");
}

pub(super) async fn without_rules_the_lane_is_default<S: Bench>(w: &World<S>) {
    assert!(w.store.lane_rules().await.unwrap().is_empty());
    let created = w.create(vec![work(), work().lane("own")]).await;
    let lanes: Vec<&str> = created.ready.iter().map(|r| r.lane.as_str()).collect();
    assert_eq!(lanes, ["default", "own"]);
}

pub(super) async fn bad_rules_change_nothing<S: Bench>(w: &World<S>) {
    w.store.set_lane_rules(&rules()).await.unwrap();
    let bad = [LaneRule::to("a b"), LaneRule::to("x"), LaneRule::to("y")];
    let refused = w.store.set_lane_rules(&bad).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::InvalidRules(bad) if bad.len() == 2),
        "{refused}"
    );
    assert_eq!(w.store.lane_rules().await.unwrap(), rules());
    w.store.set_lane_rules(&rules()[1..3]).await.unwrap();
    assert_eq!(w.store.lane_rules().await.unwrap(), rules()[1..3]);
}

/// Rule 31: an existing job keeps the lane in its row, regardless of the present rules.
pub(super) async fn a_job_keeps_its_lane_whatever_becomes_of_it<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(
            (0..3)
                .map(|_| work().lane("old").repeat_text("R3/PT10M"))
                .collect(),
        )
        .await;
    w.store
        .set_lane_rules(&[LaneRule::to("new")])
        .await
        .unwrap();
    let worker = node();
    let mut held: Vec<LockedJob> = Vec::new();
    for hint in &hints {
        held.push(w.hold(worker, hint).await);
    }
    // A retry, and its return.
    w.fail(worker, retry_after(&held[0], Duration::from_secs(60)))
        .await;
    assert_eq!(lane_of(w, hints[0].id).await, "old");
    let (_, ready) = w.store.retry(hints[0].id, 3).await.unwrap();
    assert_eq!(ready[0].lane.as_str(), "old");
    // A dead letter, and its retry by an operator.
    w.fail(worker, give_up(&held[1])).await;
    let (_, ready) = w.store.retry(hints[1].id, 3).await.unwrap();
    assert_eq!(ready[0].lane.as_str(), "old");
    // The next occurrence is a new job in the old one's lane.
    let mut completion = done(&held[2]);
    let next = jobwire_core::job::series::next_occurrence(
        &held[2].job,
        chrono::Utc::now(),
        &jobwire_core::Calendars::default(),
    )
    .unwrap();
    let next_id = next.id();
    completion.next = Some(Box::new(next));
    w.store
        .complete(worker, &[completion], &Handoff::Hint)
        .await
        .unwrap();
    assert_eq!(lane_of(w, next_id).await, "old");
}

pub(super) async fn lanes_are_listed_with_what_they_hold<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![
            work().lane("a"),
            work().lane("a"),
            work().lane("a"),
            work().lane("b"),
        ])
        .await;
    w.create(vec![work().lane("c").delay(Duration::from_secs(60))])
        .await;
    let (first, second) = (node(), node());
    w.hold(first, &hints[0]).await;
    w.hold(second, &hints[1]).await;
    let dead = w.hold(first, &hints[3]).await;
    w.fail(first, give_up(&dead)).await;
    let lanes = w.store.lanes().await.unwrap();
    let names: Vec<&str> = lanes.iter().map(|view| view.lane.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let counts = |at: usize| {
        let view = &lanes[at];
        [
            view.ready,
            view.running,
            view.timers,
            view.suspended,
            view.dead_letters,
            view.nodes,
        ]
    };
    assert_eq!(counts(0), [1, 2, 0, 0, 0, 2]);
    assert_eq!(counts(1), [0, 0, 0, 0, 1, 0]);
    assert_eq!(counts(2), [0, 0, 1, 0, 0, 0]);
    let oldest = w.view(hints[2].id).await.unwrap().ready_at;
    assert_eq!(lanes[0].oldest_ready_at, Some(oldest), "of those that wait");
    assert_eq!(lanes[1].oldest_ready_at, None);
}

pub(super) async fn jobs_outside_the_lanes_that_are_received_are_counted<S: Bench>(w: &World<S>) {
    let jobs = ["a", "b", "b", "c"].map(|name| work().lane(name));
    let hints = w.ready(jobs.to_vec()).await;
    w.hold(node(), &hints[3]).await;
    let outside = async |known: &[Lane]| {
        let found = w.store.lanes_outside(known, 10).await.unwrap();
        let counts = found
            .into_iter()
            .map(|backlog| (backlog.lane.to_string(), backlog.jobs));
        counts.collect::<Vec<_>>()
    };
    assert_eq!(outside(&[lane("a")]).await, [("b".to_owned(), 2)]);
    assert_eq!(
        outside(&[]).await,
        [("b".to_owned(), 2), ("a".to_owned(), 1)]
    );
    assert!(outside(&[lane("a"), lane("b")]).await.is_empty());
}

async fn page<S: Bench>(
    w: &World<S>,
    state: JobState,
    after: Option<JobId>,
    at_most: i64,
) -> MovedPage {
    let page = LanePage {
        from: lane("old"),
        to: lane("new"),
        state,
        after,
        at_most,
        origin: Origin::Hook,
    };
    w.store.move_lane(&page).await.unwrap()
}

pub(super) async fn a_lane_is_moved_in_pages_and_what_is_locked_stays<S: Bench>(w: &World<S>) {
    let mut jobs: Vec<NewJob> = (0..7).map(|_| work().lane("old")).collect();
    jobs.push(work().lane("other"));
    let hints = w.ready(jobs).await;
    let held = w.hold(node(), &hints[2]).await;
    w.make_old(60).await;
    let mut moved = Vec::new();
    let (mut after, mut pages) = (None, 0);
    loop {
        let done = page(w, JobState::Executable, after, 3).await;
        assert!(done.moved <= 3);
        assert!(done.ready.iter().all(|ready| ready.lane.as_str() == "new"));
        moved.extend(ids(&done.ready));
        pages += 1;
        after = done.after;
        if after.is_none() {
            break;
        }
    }
    assert!(pages >= 3, "{pages}");
    let expected: Vec<JobId> = (0..7).filter(|n| *n != 2).map(|n| hints[n].id).collect();
    assert_eq!(moved, expected, "in creation order");
    assert_eq!(lane_of(w, held.job.id).await, "old");
    assert_eq!(lane_of(w, hints[7].id).await, "other");
    // The jobs are ready anew, so their hints are not suspected to be lost.
    let age =
        w.view(hints[0].id).await.unwrap().ready_at - w.view(held.job.id).await.unwrap().ready_at;
    assert!(age.num_seconds() >= 50, "{age}");
    // Moved again, after the holder has released it.
    let owner = w.view(held.job.id).await.unwrap().lock_owner.unwrap();
    w.release(jobwire_core::NodeId::from_uuid(owner), held.held())
        .await;
    let rest = page(w, JobState::Executable, None, 3).await;
    assert_eq!((rest.moved, rest.after), (1, None));
    assert_eq!(page(w, JobState::Executable, None, 3).await.moved, 0);
}

pub(super) async fn what_waits_elsewhere_changes_its_lane_too<S: Bench>(w: &World<S>) {
    let hints = w
        .ready(vec![
            work().lane("old"),
            work().lane("old").tenant("t"),
            work().lane("old"),
        ])
        .await;
    w.create(vec![work().lane("old").delay(Duration::from_secs(60))])
        .await;
    let worker = node();
    let dead = w.hold(worker, &hints[0]).await;
    w.fail(worker, give_up(&dead)).await;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    w.store.suspend(&tenant).await.unwrap();
    let mut pages = 0;
    let moved = LaneMove::new(lane("old"), lane("new"))
        .run(&w.store, &CommitHook::disconnected(), |_| pages += 1)
        .await
        .unwrap();
    assert_eq!(
        [
            moved.ready,
            moved.timers,
            moved.suspended,
            moved.dead_letters
        ],
        [1, 1, 1, 1]
    );
    assert_eq!(moved.jobs(), 4);
    assert!(pages >= 4);
    let left = JobQuery::default().lane("old");
    assert_eq!(w.store.count(&left).await.unwrap(), 0);
    // Jobs that return do so in the new lane.
    let ready = w.store.activate(&tenant).await.unwrap().ready;
    assert_eq!(ready[0].lane.as_str(), "new");
    let (_, ready) = w.store.retry(hints[0].id, 3).await.unwrap();
    assert_eq!(ready[0].lane.as_str(), "new");
}

/// Without a hook, moved jobs are not hinted: the leader finds them like jobs of plain SQL.
pub(super) async fn what_moves_without_a_hook_is_found_by_the_leader<S: Bench>(w: &World<S>) {
    let hint = w.one(work().lane("old")).await;
    let leader = node();
    assert!(w.lead(leader).await.unhinted.is_empty());
    let moved = LaneMove::new(lane("old"), lane("new"))
        .run(&w.store, &CommitHook::disconnected(), |_| ())
        .await
        .unwrap();
    assert_eq!((moved.ready, moved.hints), (1, 1));
    let found = w.lead(leader).await.unhinted;
    assert_eq!(ids(&found), [hint.id]);
    assert_eq!(found[0].lane.as_str(), "new");
}

pub(super) async fn of_an_instance_that_moves_only_the_first_is_hinted<S: Bench>(w: &World<S>) {
    let jobs = ["a", "a", "b", "a"].map(|name| work().lane("old").instance(name));
    let mut jobs = jobs.to_vec();
    // An older sibling in another lane decides for its instance.
    jobs.insert(0, work().instance("c"));
    jobs.push(work().lane("old").instance("c"));
    let hints = w.ready(jobs).await;
    let done = page(w, JobState::Executable, None, 100).await;
    assert_eq!(done.moved, 5);
    assert_eq!(ids(&done.ready), [hints[1].id, hints[3].id]);
    assert_eq!(done.ready[0].hint.instance.as_deref(), Some("a"));
}

pub(super) async fn a_move_that_can_not_work_moves_nothing<S: Bench>(w: &World<S>) {
    let hint = w.one(work().lane("old")).await;
    let bad = LaneMove::new(lane("old"), lane("a b"));
    let refused = bad.run(&w.store, &CommitHook::disconnected(), |_| ()).await;
    assert!(matches!(refused, Err(StoreError::Config(_))), "{refused:?}");
    assert_eq!(lane_of(w, hint.id).await, "old");
}
