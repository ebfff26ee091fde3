//! Due timers that the database refuses to move: they delay no timer behind them.

use std::collections::BTreeSet;

use jobwire_core::JobId;
use jobwire_core::store::{MovedTimers, Store};
use sqlx::Row;

use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::job_id;
use crate::engines::rows::TIMER;

/// A constraint that the table of timers lacks.
const REFUSE: &str = "ALTER TABLE act_ru_job ADD CHECK (retries_ <> 7)";
const REFUSED: &str = "UPDATE act_ru_timer_job SET retries_ = 7 WHERE id_ = $1";
/// Creates an executable job with the id of a timer.
const DOUBLE: &str = "INSERT INTO act_ru_job SELECT * FROM act_ru_timer_job WHERE id_ = $1";
/// Brings the numbers of jobs and timers to the ends of their range.
const COUNT: &str = "
UPDATE act_ru_execution SET job_count_ = 2147483647, timer_job_count_ = -2147483648
WHERE id_ = (SELECT execution_id_ FROM act_ru_timer_job WHERE id_ = $1)";
const COUNTS: &str = "
SELECT e.job_count_, e.timer_job_count_ FROM act_ru_execution e JOIN act_ru_job j ON j.execution_id_ = e.id_ WHERE j.id_ = $1";

#[tokio::test]
async fn a_timer_of_flowable_that_the_database_refuses_delays_no_other() {
    a_refused_timer_delays_no_other(Engine::Flowable).await;
}

#[tokio::test]
async fn a_timer_of_activiti_that_the_database_refuses_delays_no_other() {
    a_refused_timer_delays_no_other(Engine::Activiti).await;
}

fn moved(timers: &MovedTimers) -> BTreeSet<JobId> {
    timers.ready.iter().map(|ready| ready.hint.id).collect()
}

async fn a_refused_timer_delays_no_other(engine: Engine) {
    let bare = Bare::of(engine).await;
    sqlx::query(REFUSE).execute(&bare.rows.0).await.unwrap();
    let (refused, double, counted) = (bare.timer().await, bare.timer().await, bare.timer().await);
    for (statement, timer) in [(REFUSED, &refused), (DOUBLE, &double), (COUNT, &counted)] {
        assert_eq!(bare.rows.change(statement, timer).await, 1);
    }
    let mut good = BTreeSet::from([job_id(&counted)]);
    for _ in 0..20 {
        good.insert(job_id(&bare.timer().await));
    }
    let store = bare.store(bare.options("http://127.0.0.1:1/jobwire")).await;
    let first = store.move_due_timers(100).await.unwrap();
    assert_eq!(moved(&first), good);
    for timer in [&refused, &double] {
        assert!(bare.find(TIMER, timer).await.is_some(), "{timer}");
    }
    let counts = bare.rows.all(COUNTS, &counted).await;
    let counts: (i32, i32) = (counts[0].get(0), counts[0].get(1));
    assert_eq!(counts, (i32::MAX, 0));
    // They wait for a minute, and are not tried in a loop.
    let pause = first.next_due.unwrap() - first.now;
    assert!((30..=60).contains(&pause.num_seconds()), "{pause}");
    let later = bare.timer().await;
    let second = store.move_due_timers(1).await.unwrap();
    assert_eq!(moved(&second), BTreeSet::from([job_id(&later)]));
    store.close().await;
}
