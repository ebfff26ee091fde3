//! The races of rule 27: jobs are created, tried and completed while their scope is suspended or
//! activated. No sweeps run here.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobwire_core::store::{Handoff, PauseScope, SUSPENSION_TYPE, SuspensionScope};
use jobwire_core::{Hint, JobState, NewJob, NodeId, Outcome, PgStore, Running, Store, Transport};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::world::{
    SOON, create, failed, hold, lock, refused, shut, soon, stop_at_commit, store, unswept,
    until_led, until_waiting, until_waiting_or_ended, work,
};
use crate::world::{Notes, World};

fn scope() -> SuspensionScope {
    SuspensionScope::ProcessInstance("a".to_owned())
}

/// The creating transaction was open when the suspension committed, so the suspension could not see
/// its jobs.
#[tokio::test]
async fn a_job_that_commits_into_a_suspension_waits_for_its_end() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        .options(unswept())
        .handler("note", move |job: Running<String>| {
            let seen = seen.clone();
            async move {
                seen.add(job.payload);
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    until_led(&world.store).await;
    let note = |name: &str| NewJob::of("note", &name).instance("a");
    let mut tx = world.jobs.begin().await.unwrap();
    tx.create(note("plain").concurrent()).await.unwrap();
    tx.create(note("exclusive")).await.unwrap();
    assert_eq!(world.store.suspend(&scope()).await.unwrap().moved, 0);
    tx.commit().await.unwrap();
    eventually("both hints to be refused", SOON, async || {
        let refused = refused(&scraped, "suspended") + refused(&scraped, "gone");
        (refused >= 2 || !notes.all().is_empty()).then_some(())
    })
    .await;
    assert_eq!(notes.all(), [""; 0], "suspended jobs ran");
    let ready = world.store.activate(&scope()).await.unwrap().ready;
    let publisher = world.transport.publisher();
    for ready in ready {
        let hints = vec![ready.hint];
        publisher.publish(&ready.lane, hints).await.unwrap();
    }
    let mut ran = notes.until_within(2, SOON).await;
    ran.sort_unstable();
    assert_eq!(ran, ["exclusive", "plain"]);
    world.until_empty().await;
    node.stop().await;
}

/// The activation has looked for waiting jobs and is about to commit. A job commits and its hint is
/// refused, since other transactions still see the suspension.
async fn refused_at_the_last_moment(job: NewJob) {
    let store = store().await;
    store.suspend(&scope()).await.unwrap();
    let before = create(&store, work("a").concurrent()).await;
    stop_at_commit(&store, "DELETE ON jobwire.suspension").await;
    let gate = shut(&store).await;
    let activating = store.clone();
    let activation =
        tokio::spawn(async move { activating.activate(&scope()).await.unwrap().ready });
    until_waiting(&store, 1).await;
    let hint = create(&store, job).await;
    let locked = lock(&store, NodeId::generate(), &hint).await;
    assert!(locked.jobs.is_empty(), "the suspension has not ended yet");
    gate.rollback().await.unwrap();
    let ready = soon(activation).await.unwrap();
    let mut hinted: Vec<_> = ready.iter().map(|ready| ready.hint.id).collect();
    let mut waited = [before.id, hint.id];
    hinted.sort_unstable();
    waited.sort_unstable();
    assert_eq!(hinted, waited, "each once");
}

#[tokio::test]
async fn a_job_refused_while_an_activation_commits_is_hinted_by_it() {
    refused_at_the_last_moment(work("a").concurrent()).await;
    refused_at_the_last_moment(work("a")).await;
}

/// A failing job moves to the suspended table, and the suspension ends before that move commits.
#[tokio::test]
async fn a_job_that_fails_while_its_suspension_ends_is_brought_back() {
    let store = store().await;
    let owner = NodeId::generate();
    let hint = create(&store, work("a").concurrent()).await;
    let job = hold(&store, owner, &hint).await;
    store.suspend(&scope()).await.unwrap();
    stop_at_commit(&store, "DELETE ON jobwire.job_lease").await;
    let gate = shut(&store).await;
    let failing = store.clone();
    let failure = failed(&job);
    let failing =
        tokio::spawn(async move { failing.fail(owner, &[failure], &Handoff::Hint).await });
    until_waiting(&store, 1).await;
    let activating = store.clone();
    let activation = tokio::spawn(async move { activating.activate(&scope()).await });
    until_waiting_or_ended(&store, 2, &activation).await;
    gate.rollback().await.unwrap();
    soon(failing).await.unwrap().unwrap();
    soon(activation).await.unwrap().unwrap();
    let view = store.get(hint.id).await.unwrap().unwrap().0;
    assert_eq!(view.state, JobState::Timer);
}

/// A job belongs to two suspensions that end at the same time.
#[tokio::test]
async fn a_job_of_two_suspensions_that_end_at_once_is_brought_back() {
    let store = store().await;
    let hint = create(&store, work("a")).await;
    let scopes = [scope(), SuspensionScope::Type("work".to_owned())];
    for scope in &scopes {
        store.suspend(scope).await.unwrap();
    }
    stop_at_commit(&store, "DELETE ON jobwire.suspension").await;
    let gate = shut(&store).await;
    let mut ending = Vec::new();
    for (scope, waiting) in scopes.into_iter().zip(1..) {
        let activating = store.clone();
        ending.push(tokio::spawn(
            async move { activating.activate(&scope).await },
        ));
        until_waiting(&store, waiting).await;
    }
    gate.rollback().await.unwrap();
    let mut ready = Vec::new();
    for ended in ending {
        ready.extend(soon(ended).await.unwrap().unwrap().ready);
    }
    assert_eq!(ready.len(), 1, "{ready:?}");
    let view = store.get(hint.id).await.unwrap().unwrap().0;
    assert_eq!(view.state, JobState::Executable);
}

/// Tries a hint. Returns whether its job is held now.
async fn tried(store: &PgStore, hint: &Hint) -> bool {
    !lock(store, NodeId::generate(), hint).await.jobs.is_empty()
}

/// Some tasks create and try jobs while another one suspends and activates. Each job is locked in
/// the end, although only the activation looks for refused ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_job_is_forgotten_between_suspending_and_activating() {
    const CREATORS: usize = 3;
    const EACH: usize = 150;
    let store = store().await;
    let over = Arc::new(AtomicBool::new(false));
    let (toggling, ends) = (store.clone(), over.clone());
    let toggler = tokio::spawn(async move {
        let (mut held, mut rounds) = (HashSet::new(), 0);
        loop {
            let last = ends.load(Ordering::SeqCst);
            toggling.suspend(&scope()).await.unwrap();
            for ready in toggling.activate(&scope()).await.unwrap().ready {
                let id = ready.hint.id;
                if tried(&toggling, &ready.hint).await {
                    held.insert(id);
                }
            }
            rounds += 1;
            if last {
                return (held, rounds);
            }
        }
    });
    let creators: Vec<_> = (0..CREATORS)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut held = 0;
                for _ in 0..EACH {
                    let hint = create(&store, work("a").concurrent()).await;
                    held += usize::from(tried(&store, &hint).await);
                }
                held
            })
        })
        .collect();
    let mut at_once = 0;
    for creator in creators {
        at_once += creator.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    let (later, rounds) = toggler.await.unwrap();
    println!(
        "{at_once} at once, {} after one of {rounds} activations",
        later.len()
    );
    let held: i64 = sqlx::query_scalar("SELECT count(*) FROM jobwire.job_lease")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(held as usize, CREATORS * EACH, "some jobs are forgotten");
}

/// The job that ends the pause is not paused itself, and no node has registered its type.
#[tokio::test]
async fn a_pause_of_everything_ends_at_its_date() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        .options(unswept())
        .handler("note", move |_: Running<()>| {
            seen.add("ran");
            async { Ok(Outcome::Done) }
        })
        .start()
        .await
        .unwrap();
    until_led(&world.store).await;
    assert!(world.jobs.pause(&PauseScope::All).await.unwrap());
    let in_a_second = chrono::Utc::now() + chrono::Duration::seconds(1);
    let end = world.jobs.resume_at(&PauseScope::All, in_a_second);
    let end = end.await.unwrap();
    let refused = NewJob::of(SUSPENSION_TYPE, &17);
    let bad = world.jobs.create(refused).await.unwrap();
    for job in [
        NewJob::of("note", &()),
        NewJob::of("note", &()).instance("a"),
    ] {
        world.jobs.create(job).await.unwrap();
    }
    let letter = eventually("the bad job to be a dead letter", SOON, async || {
        let (view, ..) = world.store.get(bad).await.unwrap()?;
        (view.state == JobState::DeadLetter).then_some(view)
    })
    .await;
    let message = letter.exception_message.unwrap();
    assert!(message.contains("field `payload` is not"), "{message}");
    assert_eq!(notes.until(2).await, ["ran", "ran"]);
    eventually("the end to be done", SOON, async || {
        world.store.get(end).await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(world.jobs.suspensions().await.unwrap().is_empty());
    node.stop().await;
}

/// The process that resumes dies after the pause has ended and before it publishes a hint.
#[tokio::test]
async fn a_resumption_that_is_cut_short_is_healed_by_the_sweeper() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        .handler("note", move |_: Running<()>| {
            seen.add("ran");
            async { Ok(Outcome::Done) }
        })
        .start()
        .await
        .unwrap();
    let scope = PauseScope::Type("note".to_owned());
    assert!(world.jobs.pause(&scope).await.unwrap());
    for _ in 0..3 {
        world.jobs.create(NewJob::of("note", &())).await.unwrap();
    }
    eventually("the hints to be refused", SOON, async || {
        (refused(&scraped, "suspended") >= 3).then_some(())
    })
    .await;
    // Sweeps pass, and no paused job is hinted again.
    crate::world::pass(Duration::from_secs(3)).await;
    assert_eq!(refused(&scraped, "suspended"), 3);
    assert!(notes.all().is_empty());
    let lifted = world.store.resume(&scope).await.unwrap();
    assert_eq!(lifted.ready.len(), 3);
    drop(lifted);
    assert_eq!(notes.until(3).await.len(), 3);
    world.until_empty().await;
    node.stop().await;
}
