use super::*;
use crate::job::Fence;

/// Enters a lease as after the answer to a lock statement.
fn hold(book: &LeaseBook, held: LockToken, sent: Instant) -> Arc<Lease> {
    book.under_way().expect(held.fence, Instant::now());
    book.hold(held, 0, sent).expect("it was expected")
}

#[test]
fn a_lease_that_was_seen_to_otherwise_is_not_started() {
    let book = LeaseBook::new(Duration::from_secs(10), Gauge::noop());
    let late = held(1);
    assert!(book.hold(late.clone(), 0, Instant::now()).is_none());
    assert!(!book.trusts(&late));
}

fn held(fence: i64) -> LockToken {
    LockToken {
        id: JobId::generate(),
        fence: Fence(fence),
        instance: None,
    }
}

/// The row lock becomes a lease later, and a look that began before may see this lease.
#[test]
fn a_row_that_is_held_while_a_look_is_open_is_known_to_it() {
    let book = LeaseBook::new(Duration::from_secs(10), Gauge::noop());
    assert!(book.begin_look().is_some());
    let row = held(7);
    book.hold_row(row.clone(), Instant::now(), Duration::from_secs(1));
    book.forget(&row);
    assert!(book.under_way().knows(Fence(7)));
    assert!(!book.under_way().knows(Fence(8)));
}

#[test]
fn trust_starts_before_the_statement_and_ends_with_the_lease() {
    let book = LeaseBook::new(Duration::from_secs(10), Gauge::noop());
    let fresh = held(1);
    hold(&book, fresh.clone(), Instant::now());
    assert!(book.trusts(&fresh));
    let stale = held(2);
    let sent = Instant::now() - Duration::from_secs(11);
    let lease = hold(&book, stale.clone(), sent);
    assert!(!book.trusts(&stale));
    book.expire();
    assert!(lease.stop.is_given() && lease.lost.is_given());
}

/// The leader has ended the lock of a node that slept, and the node takes the job again before it
/// knows.
#[test]
fn a_lease_that_a_newer_one_replaces_is_lost() {
    let book = LeaseBook::new(Duration::from_secs(12), Gauge::noop());
    let older = held(1);
    let lease = hold(&book, older.clone(), Instant::now());
    let newer = LockToken {
        fence: Fence(2),
        ..older.clone()
    };
    let next = hold(&book, newer.clone(), Instant::now());
    assert!(lease.stop.is_given() && lease.lost.is_given());
    assert!(!next.lost.is_given());
    book.forget(&older);
    assert!(book.trusts(&newer));
}

#[test]
fn a_job_is_asked_to_stop_before_its_lease_ends() {
    let book = LeaseBook::new(Duration::from_secs(12), Gauge::noop());
    let sent = Instant::now() - Duration::from_secs(11);
    let lease = hold(&book, held(1), sent);
    book.expire();
    assert!(lease.stop.is_given() && !lease.lost.is_given());
}

#[test]
fn jobs_with_a_strike_are_counted_while_they_are_held() {
    let book = LeaseBook::new(Duration::from_secs(10), Gauge::noop());
    let struck = held(1);
    for fence in [1, 2] {
        let again = LockToken {
            fence: Fence(fence),
            ..struck.clone()
        };
        book.under_way().expect(again.fence, Instant::now());
        book.hold(again, 1, Instant::now())
            .expect("it was expected");
        assert_eq!(book.struck(), 1);
    }
    hold(&book, held(3), Instant::now());
    assert_eq!(book.struck(), 1);
    book.forget(&struck);
    book.has_run(&struck);
    assert_eq!(book.struck(), 1, "another lock on it is held");
    book.forget(&LockToken {
        fence: Fence(2),
        ..struck
    });
    assert_eq!(book.struck(), 0);
}

#[test]
fn an_old_lock_does_not_forget_a_newer_one_on_the_same_job() {
    let book = LeaseBook::new(Duration::from_secs(10), Gauge::noop());
    let old = held(1);
    let new = LockToken {
        fence: Fence(2),
        ..old.clone()
    };
    hold(&book, new.clone(), Instant::now());
    book.forget(&old);
    assert!(book.trusts(&new) && !book.trusts(&old));
}

#[test]
fn a_lease_that_was_not_renewed_is_lost_unless_its_row_was_busy() {
    let book = LeaseBook::new(Duration::from_secs(9), Gauge::noop());
    let (kept, gone, busy) = (held(1), held(2), held(3));
    let sent = Instant::now() - Duration::from_secs(4);
    hold(&book, kept.clone(), sent);
    let lease = hold(&book, gone.clone(), sent);
    let waits = hold(&book, busy.clone(), sent);
    assert_eq!(book.due().len(), 3);
    let answer = Renewed {
        renewed: vec![kept.id],
        busy: vec![busy.id],
        cancelled: Vec::new(),
    };
    book.renewed(&[kept.clone(), gone, busy.clone()], &answer, Instant::now());
    assert!(lease.lost.is_given());
    assert!(!waits.lost.is_given());
    assert_eq!(book.due(), [busy], "it is renewed again soon");
}

#[test]
fn after_a_sleep_of_the_machine_every_lease_is_due() {
    let book = LeaseBook::new(Duration::from_secs(9), Gauge::noop());
    let fresh = held(1);
    hold(&book, fresh.clone(), Instant::now());
    assert_eq!(book.due(), []);
    book.ask_about_all();
    assert_eq!(book.due(), std::slice::from_ref(&fresh));
    let answer = Renewed {
        renewed: vec![fresh.id],
        ..Renewed::default()
    };
    book.renewed(std::slice::from_ref(&fresh), &answer, Instant::now());
    assert_eq!(book.due(), []);
}

#[test]
fn a_renewal_that_was_under_way_during_a_sleep_leaves_its_leases_due() {
    let book = LeaseBook::new(Duration::from_secs(9), Gauge::noop());
    let fresh = held(1);
    hold(&book, fresh.clone(), Instant::now());
    let sent = Instant::now() - Duration::from_millis(1);
    book.ask_about_all();
    let answer = Renewed {
        renewed: vec![fresh.id],
        ..Renewed::default()
    };
    book.renewed(std::slice::from_ref(&fresh), &answer, sent);
    assert_eq!(book.due(), std::slice::from_ref(&fresh));
    book.renewed(std::slice::from_ref(&fresh), &answer, Instant::now());
    assert_eq!(book.due(), []);
}
