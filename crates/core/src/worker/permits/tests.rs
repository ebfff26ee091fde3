//! Tests of the book of permits: what is asked for, what goes to the next job, what goes back.

mod fleet;

use super::*;
use crate::job::{Fence, JobId, LockToken};

fn key() -> PermitKey {
    PermitKey {
        limit: "mail".to_owned(),
        key: String::new(),
    }
}

fn asking() -> Asking {
    Asking {
        held: LockToken {
            id: JobId::generate(),
            fence: Fence(1),
            instance: None,
        },
        job_type: "mail".to_owned(),
        seq: 1,
        fair_key: None,
    }
}

const fn running(size: i32) -> Terms {
    Terms {
        size,
        cool_down: Duration::ZERO,
    }
}

const fn rate(size: i32, seconds: u64) -> Terms {
    Terms {
        size,
        cool_down: Duration::from_secs(seconds),
    }
}

/// Grants what the round asks for, and `spare` permits.
fn grant(permits: &Arc<Permits>, round: Round, spare: i32, contended: bool) -> Vec<Permit> {
    let mut got = Vec::new();
    for of in &round.keys {
        let granted: Vec<JobId> = of.asking.iter().map(|job| job.held.id).collect();
        let answer = KeyAnswer {
            key: of.key.clone(),
            number: of.keep + i32::try_from(granted.len()).expect("few") + spare,
            granted: granted.clone(),
            contended,
        };
        permits.answered(&answer, TrustedUntil::after(Duration::from_secs(30)));
        let terms = Terms {
            size: of.size,
            cool_down: of.cool_down,
        };
        let permit = |_| Permit::new(permits.clone(), of.key.clone(), terms);
        got.extend(granted.iter().map(permit));
    }
    got
}

#[tokio::test(start_paused = true)]
async fn a_free_permit_goes_to_the_next_job_without_a_statement_and_back_after_a_second() {
    let permits = Arc::new(Permits::default());
    let answer = permits.ask(key(), running(16), asking());
    assert!(answer.is_err(), "nothing is borrowed yet");
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!((round.keys[0].keep, round.keys[0].spare), (0, 2));
    let mut jobs = grant(&permits, round, 1, false);
    let second = permits.ask(key(), running(16), asking());
    assert!(
        permits.ask(key(), running(16), asking()).is_err(),
        "two are borrowed"
    );
    assert!(permits.begin(Extent::Due, Vec::new()).keys.is_empty());
    drop((second, jobs.pop()));
    // The window begins with the request.
    tokio::time::advance(IDLE).await;
    permits.begin(Extent::Due, Vec::new());
    tokio::time::advance(IDLE).await;
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys.len(), 1);
    assert_eq!(round.keys[0].keep, 0);
    grant(&permits, round, 0, false);
    assert!(permits.is_empty());
}

#[tokio::test(start_paused = true)]
async fn half_as_many_free_permits_of_a_rate_as_were_in_use_stay_and_none_of_an_idle_key() {
    let permits = Arc::new(Permits::default());
    let terms = rate(80, 1);
    let _answer = permits.ask(key(), terms, asking());
    let round = permits.begin(Extent::Due, Vec::new());
    let first = grant(&permits, round, 10, false);
    let jobs: Vec<Permit> = (0..3)
        .filter_map(|_| permits.ask(key(), terms, asking()).ok())
        .collect();
    assert_eq!(jobs.len(), 3, "of the ten");
    tokio::time::advance(IDLE).await;
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys[0].keep, 6, "four in use and half of that");
    grant(&permits, round, 0, false);
    tokio::time::advance(IDLE).await;
    assert!(permits.begin(Extent::Due, Vec::new()).keys.is_empty());
    drop((first, jobs));
    tokio::time::advance(IDLE).await;
    permits.begin(Extent::Due, Vec::new());
    tokio::time::advance(IDLE).await;
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys[0].keep, 0);
}

#[tokio::test(start_paused = true)]
async fn jobs_that_end_wake_the_task_once_for_each_deadline() {
    let permits = Arc::new(Permits::default());
    let _answer = permits.ask(key(), running(80), asking());
    let round = permits.begin(Extent::Due, Vec::new());
    let jobs = grant(&permits, round, 10, false);
    let wakes = async || {
        let notified = permits.wakes.notified();
        tokio::time::timeout(Duration::ZERO, notified).await.is_ok()
    };
    assert!(wakes().await, "by the question");
    assert_eq!(permits.due(), Some(Instant::now() + IDLE + GATHER));
    drop(jobs);
    for _ in 0..10 {
        drop(permits.ask(key(), running(80), asking()));
    }
    assert!(!wakes().await, "the task looks when the window ends");
}

#[tokio::test(start_paused = true)]
async fn where_jobs_wait_each_permit_goes_back_at_the_end_of_its_job() {
    let permits = Arc::new(Permits::default());
    let _answer = permits.ask(key(), running(2), asking());
    let _other = permits.ask(key(), running(2), asking());
    let round = permits.begin(Extent::Due, Vec::new());
    let mut jobs = grant(&permits, round, 0, true);
    assert_eq!(permits.due(), None);
    drop(jobs.pop());
    assert!(permits.due().is_some_and(|due| due <= Instant::now()));
    assert!(
        permits.ask(key(), running(2), asking()).is_err(),
        "the one that waits comes first"
    );
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys[0].keep, 1);
}

#[tokio::test(start_paused = true)]
async fn permits_are_not_trusted_after_their_time_and_a_dropped_job_does_not_ask() {
    let permits = Arc::new(Permits::default());
    let _answer = permits.ask(key(), running(8), asking());
    let round = permits.begin(Extent::Due, Vec::new());
    let jobs = grant(&permits, round, 1, false);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert!(permits.ask(key(), running(8), asking()).is_err());
    let round = permits.begin(Extent::Due, Vec::new());
    assert!(round.asks.is_empty(), "its job has gone");
    assert_eq!(round.keys[0].keep, 1, "that of the running job");
    drop(jobs);
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_is_made_again_and_a_stalled_key_is_named_once() {
    let permits = Arc::new(Permits::default());
    let stalled = StalledKey {
        key: key(),
        size: 3,
    };
    let round = permits.begin(Extent::All, vec![stalled]);
    assert_eq!((round.keys.len(), round.keys[0].keep), (1, 0));
    permits.failed(&round.keys);
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys.len(), 1);
    grant(&permits, round, 0, false);
    assert!(permits.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_permit_of_a_rate_is_free_again_a_cool_down_after_the_start() {
    let permits = Arc::new(Permits::default());
    let _answer = permits.ask(key(), rate(16, 4), asking());
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys[0].spare, 2, "an eighth");
    assert_eq!(round.keys[0].cool_down, Duration::from_secs(4));
    let job = grant(&permits, round, 1, false).remove(0);
    let second = permits.ask(key(), rate(16, 4), asking());
    assert!(job.may_start() && job.is_for_one_start());
    // The wait before the start does not count.
    tokio::time::advance(Duration::from_secs(3)).await;
    job.started();
    job.started();
    drop(job);
    // A job that has not started leaves its permit at once.
    drop(second);
    let third = permits.ask(key(), rate(16, 4), asking()).ok().unwrap();
    third.started();
    tokio::time::advance(Duration::from_millis(3_999)).await;
    assert!(permits.ask(key(), rate(16, 4), asking()).is_err());
    tokio::time::advance(Duration::from_millis(1)).await;
    let again = [(); 2].map(|()| permits.ask(key(), rate(16, 4), asking()));
    assert!(again.iter().all(Result::is_ok), "both are cold");
    assert!(permits.ask(key(), rate(16, 4), asking()).is_err());
}

#[tokio::test(start_paused = true)]
async fn where_jobs_wait_a_permit_of_a_rate_goes_back_at_the_instant_at_which_it_is_cold() {
    let permits = Arc::new(Permits::default());
    let _answer = permits.ask(key(), rate(2, 1), asking());
    let _other = permits.ask(key(), rate(2, 1), asking());
    let round = permits.begin(Extent::Due, Vec::new());
    let mut jobs = grant(&permits, round, 0, true);
    assert_eq!(permits.due(), None);
    jobs.pop().unwrap().started();
    let cold = Instant::now() + Duration::from_secs(1);
    assert_eq!(permits.due(), Some(cold));
    tokio::time::advance(Duration::from_millis(400)).await;
    jobs.pop().unwrap().started();
    assert_eq!(permits.due(), Some(cold));
    tokio::time::advance(Duration::from_millis(600)).await;
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys[0].keep, 1, "the second still cools down");
    assert!(round.keys[0].cooling.is_empty(), "on this node");
    grant(&permits, round, 0, true);
    assert_eq!(permits.due(), Some(cold + Duration::from_millis(400)));
}

#[tokio::test(start_paused = true)]
async fn permits_that_cool_down_for_long_or_on_a_node_that_ends_are_handed_over() {
    for (seconds, extent) in [(3_600, Extent::Due), (10, Extent::Back)] {
        let permits = Arc::new(Permits::default());
        let _answer = permits.ask(key(), rate(8, seconds), asking());
        let round = permits.begin(Extent::Due, Vec::new());
        grant(&permits, round, 0, false).remove(0).started();
        tokio::time::advance(IDLE + GATHER).await;
        assert_eq!(permits.due() <= Some(Instant::now()), extent == Extent::Due);
        let handed = |round: &Round| {
            let of = &round.keys[0];
            let cooling = of
                .cooling
                .iter()
                .map(|of| (of.number, of.rest.as_secs_f64().round()));
            (of.keep, cooling.collect::<Vec<_>>())
        };
        let round = permits.begin(extent, Vec::new());
        assert_eq!(handed(&round), (0, vec![(1, seconds as f64 - 1.0)]));
        // The answer is lost. Meanwhile the permit is not free, and cools down.
        permits.failed(&round.keys);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(permits.ask(key(), rate(8, seconds), asking()).is_err());
        let round = permits.begin(extent, Vec::new());
        assert_eq!(handed(&round), (0, vec![(1, seconds as f64 - 3.0)]));
        grant(&permits, round, 0, false);
        assert!(permits.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_the_key_with_a_short_cool_down_does_not_shorten_that_of_another() {
    let (day, second) = (rate(8, 86_400), rate(8, 1));
    let permits = Arc::new(Permits::default());
    let _answer = permits.ask(key(), day, asking());
    let round = permits.begin(Extent::Due, Vec::new());
    let long = grant(&permits, round, 0, true).remove(0);
    let _answer = permits.ask(key(), second, asking());
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys[0].cool_down, second.cool_down);
    let short = grant(&permits, round, 0, true).remove(0);
    long.started();
    short.started();
    tokio::time::advance(IDLE / 2).await;
    let _answer = permits.ask(key(), second, asking());
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys[0].cool_down, day.cool_down);
    let rests = round.keys[0].cooling.iter().map(|of| of.rest);
    let half = IDLE / 2;
    assert_eq!(rests.collect::<Vec<_>>(), [half, day.cool_down - half]);
    grant(&permits, round, 0, true);
    let _answer = permits.ask(key(), second, asking());
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(round.keys[0].cool_down, second.cool_down, "handed over");
}

#[tokio::test(start_paused = true)]
async fn the_row_of_a_node_lasts_for_the_longest_cool_down_of_its_handlers() {
    let (long, short) = (rate(8, 60), rate(8, 1));
    let permits = Arc::new(Permits::default());
    let cool_down = |round: &Round| round.keys[0].cool_down;
    for both in [[long, short], [short, long]] {
        let _asked = both.map(|terms| permits.ask(key(), terms, asking()));
        let round = permits.begin(Extent::Due, Vec::new());
        assert_eq!((cool_down(&round), round.asks.len()), (long.cool_down, 2));
        grant(&permits, round, 0, true);
    }

    let _asked = permits.ask(key(), long, asking());
    let round = permits.begin(Extent::Due, Vec::new());
    let mut jobs = grant(&permits, round, 0, false);
    let _asked = permits.ask(key(), short, asking());
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(cool_down(&round), short.cool_down);
    jobs.extend(grant(&permits, round, 1, false));
    assert!(
        permits.ask(key(), long, asking()).is_err(),
        "the row would expire before the free permit is cold"
    );
    assert!(permits.ask(key(), short, asking()).is_ok());

    // The row is written anew as soon as the job has started, also if a request is under way.
    let round = permits.begin(Extent::All, Vec::new());
    assert_eq!(cool_down(&round), short.cool_down);
    assert!(permits.due() > Some(Instant::now()));
    jobs[0].started();
    assert_eq!(permits.due(), Some(Instant::now()));
    grant(&permits, round, 0, false);
    assert_eq!(permits.due(), Some(Instant::now()));
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(cool_down(&round), long.cool_down);
    grant(&permits, round, 0, false);
    assert!(permits.due() > Some(Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_used_up_by_the_start_of_the_handler_if_its_limit_is_a_rate() {
    for (terms, uses_up) in [(rate(1, 1), true), (running(1), false)] {
        let permits = Arc::new(Permits::default());
        let _answer = permits.ask(key(), terms, asking());
        let round = permits.begin(Extent::Due, Vec::new());
        let permit = grant(&permits, round, 0, false).remove(0);
        assert!(!permit.is_used_up(), "no handler has started");
        permit.started();
        assert_eq!(permit.is_used_up(), uses_up);
    }
}

#[tokio::test(start_paused = true)]
async fn no_job_starts_under_a_permit_of_a_rate_that_is_no_longer_trusted() {
    let permits = Arc::new(Permits::default());
    let _answer = permits.ask(key(), rate(8, 1), asking());
    let round = permits.begin(Extent::Due, Vec::new());
    let jobs = grant(&permits, round, 0, false);
    assert!(jobs[0].may_start());
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(!jobs[0].may_start());
}

#[tokio::test(start_paused = true)]
async fn no_more_is_borrowed_to_spare_than_a_rate_gives_in_a_second() {
    for (size, seconds, spare) in [(1_000, 1, 125), (1_000, 86_400, 0), (864_000, 86_400, 10)] {
        let permits = Arc::new(Permits::default());
        let _answer = permits.ask(key(), rate(size, seconds), asking());
        let round = permits.begin(Extent::Due, Vec::new());
        assert_eq!(round.keys[0].spare, spare);
    }
}

fn key_of(name: &str) -> PermitKey {
    PermitKey {
        limit: "mail".to_owned(),
        key: name.to_owned(),
    }
}

fn names(round: &Round) -> Vec<&str> {
    let mut names: Vec<&str> = round.keys.iter().map(|of| &*of.key.key).collect();
    names.sort_unstable();
    names
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_refused_request_are_sent_apart_and_a_locked_one_stops_no_other() {
    let permits = Arc::new(Permits::default());
    let mut answers = Vec::new();
    for name in ["locked", "free"] {
        answers.push(permits.ask(key_of(name), running(1), asking()));
    }
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(names(&round), ["free", "locked"]);
    permits.failed(&round.keys);
    permits.refused(&round.keys);
    permits.ask_again(round.asks);
    let mut alone = Vec::new();
    for _ in 0..2 {
        let round = permits.begin(Extent::Due, Vec::new());
        assert_eq!((round.keys.len(), round.asks.len()), (1, 1));
        alone.push(names(&round)[0].to_owned());
        if alone.ends_with(&["locked".to_owned()]) {
            permits.failed(&round.keys);
            permits.refused(&round.keys);
            permits.ask_again(round.asks);
        } else {
            grant(&permits, round, 0, false);
        }
    }
    alone.sort_unstable();
    assert_eq!(alone, ["free", "locked"]);
    assert!(!permits.has_more());
    assert!(permits.due().is_some_and(|due| due > Instant::now()));

    // The locked key waits for its pause, whatever the others do.
    answers.push(permits.ask(key_of("other"), running(1), asking()));
    let round = permits.begin(Extent::All, Vec::new());
    assert!(!names(&round).contains(&"locked"));
    grant(&permits, round, 0, false);
    tokio::time::advance(FIRST_BACKOFF).await;
    answers.push(permits.ask(key_of("third"), running(1), asking()));
    let round = permits.begin(Extent::Due, Vec::new());
    assert_eq!(names(&round), ["locked"]);
    assert!(permits.has_more(), "the third key has its turn next");
    grant(&permits, round, 0, false);
    let round = permits.begin(Extent::Due, Vec::new());
    assert!(names(&round).contains(&"third"));
}

#[tokio::test(start_paused = true)]
async fn no_job_waits_for_a_key_that_is_refused_again_and_again() {
    let permits = Arc::new(Permits::default());
    let _asked = permits.ask(key_of("locked"), running(1), asking());
    for refusal in 1..=REFUSALS {
        let round = permits.begin(Extent::Due, Vec::new());
        assert_eq!(names(&round), ["locked"]);
        permits.failed(&round.keys);
        let hopeless = permits.refused(&round.keys);
        assert_eq!(hopeless, refusal == REFUSALS);
        permits.ask_again(round.asks);
        if !hopeless {
            tokio::time::advance(LONGEST_BACKOFF).await;
        }
    }
    let mut answer = permits
        .ask(key_of("locked"), running(1), asking())
        .err()
        .unwrap();
    assert!(matches!(answer.try_recv(), Ok(Answered::Refused)));
    // After the pause the key is tried again.
    tokio::time::advance(LONGEST_BACKOFF).await;
    let mut answer = permits
        .ask(key_of("locked"), running(1), asking())
        .err()
        .unwrap();
    assert!(answer.try_recv().is_err());
    let round = permits.begin(Extent::Due, Vec::new());
    drop(grant(&permits, round, 0, false));
    assert!(permits.ask(key_of("locked"), running(1), asking()).is_ok());
}
