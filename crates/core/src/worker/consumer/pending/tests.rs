use super::*;
use crate::job::{JobId, NodeId};
use crate::lane::start_order::{Rank, StartOrder};
use crate::worker::consumer::waiting::Tried;

fn pending() -> Pending {
    let lanes = ["high", "low"].map(|name| Lane(name.to_owned()));
    Pending::new(lanes.into_iter())
}

fn ticket(number: u64) -> Ticket {
    Ticket { epoch: 1, number }
}

fn arrival(lane: usize, number: u64) -> Arrival {
    Arrival {
        lane,
        ticket: (number > 0).then(|| ticket(number)),
        received_at: Utc::now(),
        published_at: None,
        rescued: false,
        woken: false,
        forwarded: false,
        tried: Tried::Never,
        full_since: None,
        rank: Ranked::Unread,
    }
}

fn wake(pending: &mut Pending, lane: usize) -> JobId {
    let hint = Hint::new(JobId::generate());
    let id = hint.id;
    let of = Arrival {
        woken: true,
        ..arrival(lane, 0)
    };
    pending.push_woken(hint, of);
    id
}

fn push(pending: &mut Pending, lane: usize, number: u64) -> JobId {
    let hint = Hint::new(JobId::generate());
    let id = hint.id;
    pending.push_hint(hint, arrival(lane, number));
    id
}

fn marker(number: u64) -> Marker {
    Marker {
        number,
        node: NodeId::generate(),
    }
}

fn place(priority: i64) -> Place {
    let rank = Rank {
        priority,
        timer: false,
        due_at: Utc::now(),
    };
    StartOrder::default().by_priority().place(&rank)
}

fn pop(pending: &mut Pending, lane: usize) -> Option<JobId> {
    pending.pop(lane, 0).map(|waiting| waiting.hint.id)
}

#[test]
fn each_lane_is_first_in_first_out() {
    let mut pending = pending();
    let high = [push(&mut pending, 0, 1), push(&mut pending, 0, 2)];
    let low = push(&mut pending, 1, 3);
    assert_eq!(pending.len(), 3);
    assert_eq!(pop(&mut pending, 1), Some(low));
    assert_eq!(pop(&mut pending, 1), None);
    assert_eq!(pop(&mut pending, 0), Some(high[0]));
    assert_eq!(pop(&mut pending, 0), Some(high[1]));
    assert_eq!(pending.len(), 0);
}

#[test]
fn the_age_of_a_lane_is_that_of_its_next_hint_since_its_publication() {
    let mut pending = pending();
    let now = Utc::now();
    let mut of = arrival(0, 1);
    (of.received_at, of.published_at) = (now, Some(now - Duration::from_secs(90)));
    pending.push_hint(Hint::new(JobId::generate()), of);
    of.published_at = None;
    pending.push_hint(Hint::new(JobId::generate()), of);
    assert_eq!(pending.waited(0, now), Duration::from_secs(90));
    assert_eq!(pending.waited(1, now), Duration::ZERO);
    pop(&mut pending, 0);
    assert_eq!(pending.waited(0, now), Duration::ZERO, "received now");
    // A publisher whose clock is fast.
    of.published_at = Some(now + Duration::from_secs(5));
    pop(&mut pending, 0);
    pending.push_hint(Hint::new(JobId::generate()), of);
    assert_eq!(pending.waited(0, now), Duration::ZERO);
}

#[test]
fn hints_are_sorted_by_their_places_and_pass_no_marker() {
    let mut pending = pending();
    let before: Vec<JobId> = (1..=3).map(|n| push(&mut pending, 0, n)).collect();
    pending.push_marker(0, marker(1), ticket(4));
    let after: Vec<JobId> = (5..=6).map(|n| push(&mut pending, 0, n)).collect();
    let asked = pending.unranked(100);
    assert_eq!(asked, [before.clone(), after.clone()].concat());
    assert_eq!(pending.unranked(4), asked[..2], "two of each lane");
    // Of the first three, the second has no place; of the others, the last one comes first.
    let priorities = [(before[0], 1), (before[2], 2), (after[0], 8), (after[1], 9)];
    let places = priorities.map(|(id, priority)| (id, place(priority)));
    pending.rank(&asked, &places.into());
    assert!(pending.unranked(100).is_empty());
    // Hints that arrive later have no place yet.
    let late = push(&mut pending, 0, 7);
    assert_eq!(pending.unranked(100), [late]);
    for expected in [before[2], before[0], before[1]] {
        assert_eq!(pop(&mut pending, 0), Some(expected));
    }
    assert_eq!(pop(&mut pending, 0), None, "a marker");
    assert!(pending.decided_marker().is_some());
    for expected in [after[1], after[0], late] {
        assert_eq!(pop(&mut pending, 0), Some(expected));
    }
}

#[test]
fn a_message_whose_hints_were_sorted_apart_is_requeued_once() {
    let mut pending = pending();
    let ids = [1, 2, 1].map(|n| push(&mut pending, 0, n));
    let places = [(ids[0], place(3)), (ids[1], place(2)), (ids[2], place(1))];
    pending.rank(&ids, &places.into());
    let undecided = pending.take(0);
    assert_eq!(undecided.tickets, [ticket(1), ticket(2)]);
    assert_eq!((undecided.hints, pending.len()), (3, 0));
}

#[test]
fn a_rescued_job_is_the_first_of_its_lane_while_there_is_room_for_it() {
    let mut pending = pending();
    let waits = push(&mut pending, 0, 1);
    let rescued = [Hint::new(JobId::generate()), Hint::new(JobId::generate())];
    let of = Arrival {
        rescued: true,
        ..arrival(0, 0)
    };
    for hint in rescued.iter().chain(&rescued) {
        pending.push_rescued(hint.clone(), of);
    }
    assert_eq!(pending.rescued(), 2, "each waits once");
    assert!(!pending.waits(1, 9), "of its own lane only");
    let first = pending.pop(0, 2).expect("it comes first");
    assert_eq!(first.hint.id, rescued[0].id);
    pending.put_back(first);
    assert_eq!(pending.pop(0, 2).expect("again").hint.id, rescued[0].id);
    assert_eq!(pop(&mut pending, 0), Some(waits), "no room for the next");
    assert!(!pending.waits(0, 0) && pending.waits(0, 1));
    assert!(pending.take(0).own.is_empty(), "they wait on");
    assert_eq!(pending.take_addressed().len(), 1);
    assert_eq!((pending.rescued(), pending.len()), (0, 0));
}

#[test]
fn woken_jobs_and_the_others_of_their_lane_take_turns() {
    let mut pending = pending();
    let others = [(); 2].map(|()| push(&mut pending, 0, 1));
    // The first exchange wakes two jobs, the next one wakes another two.
    let mut woken = vec![wake(&mut pending, 0), wake(&mut pending, 0)];
    assert_eq!(pop(&mut pending, 0), Some(woken[0]));
    woken.extend([wake(&mut pending, 0), wake(&mut pending, 0)]);
    assert_eq!(pending.len(), 5);
    for expected in [others[0], woken[1], others[1], woken[2], woken[3]] {
        assert_eq!(pop(&mut pending, 0), Some(expected));
    }
    assert_eq!((pop(&mut pending, 0), pending.len()), (None, 0));
}

#[test]
fn what_arrives_behind_many_woken_jobs_starts_within_two_turns() {
    let mut pending = pending();
    for _ in 0..100 {
        wake(&mut pending, 0);
    }
    pop(&mut pending, 0);
    pop(&mut pending, 0);
    let late = push(&mut pending, 0, 1);
    // Each start of a woken job wakes another one.
    let first = [(); 2].map(|()| {
        wake(&mut pending, 0);
        pop(&mut pending, 0)
    });
    assert!(first.contains(&Some(late)));
}

#[test]
fn a_woken_job_waits_once_and_passes_a_marker() {
    let mut pending = pending();
    pending.push_marker(0, marker(1), ticket(1));
    let [first, second] = [(); 2].map(|()| wake(&mut pending, 0));
    let waiting = pending.pop(0, 0).expect("it passes the marker");
    assert_eq!(waiting.hint.id, first);
    // It is woken again while it waits for the answer of the database.
    let (hint, of) = (waiting.hint.clone(), waiting.of);
    pending.put_back(waiting);
    pending.push_woken(hint, of);
    assert_eq!(pending.len(), 3);
    let busy = pending.pop(0, 0).expect("it was put back at the front");
    assert_eq!(busy.hint.id, first);
    pending.push_again(busy);
    assert_eq!(pop(&mut pending, 0), Some(second));
    assert_eq!(pop(&mut pending, 0), Some(first), "a busy one comes last");
    assert_eq!((pop(&mut pending, 0), pending.len()), (None, 1));
}

#[test]
fn woken_jobs_stay_when_a_lane_leaves_and_count_as_held() {
    let mut pending = pending();
    push(&mut pending, 0, 1);
    let woken = [(); 2].map(|()| wake(&mut pending, 0));
    let past = Utc::now() - Duration::from_secs(1);
    assert_eq!(pending.own(0, past, |_| false).collect::<Vec<_>>(), woken);
    let left = pending.take(0);
    assert_eq!((left.tickets.len(), left.own.len()), (1, 0));
    assert!(pending.waits(0, 0) && !pending.waits(1, 0));
    assert!(pending.waited(0, Utc::now() + Duration::from_secs(9)) > Duration::from_secs(8));
    assert_eq!(pop(&mut pending, 0), Some(woken[0]));
    assert_eq!(pending.take_addressed().len(), 1);
    assert_eq!(pending.len(), 0);
    let again = wake(&mut pending, 0);
    assert_eq!(pop(&mut pending, 0), Some(again));
}

#[test]
fn so_many_forwarded_jobs_wait_each_once_and_longer_than_what_came_from_the_broker() {
    let mut pending = pending();
    push(&mut pending, 0, 1);
    let mut of = arrival(0, 0);
    of.forwarded = true;
    let [first, second] = [(); 2].map(|()| Hint::new(JobId::generate()));
    for _ in 0..2 {
        assert!(pending.push_forwarded(first.clone(), of, 1));
    }
    assert!(!pending.push_forwarded(second.clone(), of, 1), "no room");
    assert_eq!(pending.len(), 2);
    let past = of.received_at - Duration::from_secs(1);
    assert_eq!(
        pending.own(0, past, |_| false).collect::<Vec<_>>(),
        [first.id]
    );
    let future = of.received_at + Duration::from_secs(1);
    assert_eq!(
        pending.own(0, future, |_| false).count(),
        0,
        "for a while only"
    );
    let taken = pending.take(0);
    assert_eq!((taken.tickets.len(), taken.own.len()), (1, 0));
    assert_eq!(pop(&mut pending, 0), Some(first.id));
    assert!(pending.push_forwarded(second, of, 1));
    assert_eq!(pending.take_addressed().len(), 1);
    assert_eq!(pending.len(), 0);
}

fn of_type(job_type: &str) -> Hint {
    Hint {
        job_type: Some(job_type.to_owned()),
        ..Hint::new(JobId::generate())
    }
}

#[test]
fn what_waits_for_a_slot_of_its_type_is_passed_and_keeps_its_turn() {
    let mut pending = pending();
    let full: Vec<Hint> = ["mail", "mail", "fax", "mail"].map(of_type).into();
    for hint in &full {
        pending.push_hint(hint.clone(), arrival(0, 0));
    }
    pending.push_marker(0, marker(1), ticket(1));
    for _ in 0..full.len() {
        let waiting = pending.pop(0, 0).unwrap();
        pending.set_aside(waiting);
    }
    pending.set_aside(Waiting {
        hint: full[0].clone(),
        of: arrival(0, 0),
    });
    assert_eq!((pending.len(), pending.full()), (1, 4), "each once");
    assert!(pending.decided_marker().is_some(), "nothing holds it up");
    let free = |job_type: &str| usize::from(job_type == "mail") * 2;
    pending.try_again(free);
    let first = pending.pop(0, 0).unwrap();
    assert_eq!(first.hint.id, full[0].id);
    let second = pending.pop(0, 0).unwrap();
    assert_eq!(second.hint.id, full[1].id);
    assert!(pending.pop(0, 0).is_none());
    // Both slots were taken meanwhile.
    pending.set_aside(second);
    pending.set_aside(first);
    pending.try_again(free);
    assert_eq!(pop(&mut pending, 0), Some(full[0].id));
    let left = pending.take(0);
    assert_eq!((left.own.len(), left.tickets.len()), (3, 0));
    assert_eq!((pending.len(), pending.full()), (0, 0));
}

#[test]
fn the_youngest_of_those_that_wait_for_a_slot_of_their_type_are_left_to_others() {
    let mut pending = pending();
    let hints = ["mail"; 5].map(of_type);
    for hint in &hints {
        let of = arrival(1, 0);
        let hint = hint.clone();
        pending.set_aside(Waiting { hint, of });
    }
    let forwarded = Arrival {
        forwarded: true,
        ..arrival(1, 0)
    };
    let addressed = of_type("mail");
    pending.set_aside(Waiting {
        hint: addressed.clone(),
        of: forwarded,
    });
    let now = Instant::now();
    let young = now - Duration::from_secs(3);
    assert!(pending.take_full(1, young, |_| 0).is_empty(), "too young");
    let past = Utc::now() - Duration::from_secs(60);
    assert_eq!(
        pending.own(1, past, |_| false).count(),
        6,
        "they count as held"
    );
    let future = Utc::now() + Duration::from_secs(60);
    let alone = |job_type: &str| job_type == "mail";
    assert_eq!(pending.own(1, future, |_| false).count(), 0, "for a while");
    assert_eq!(pending.own(1, future, alone).count(), 6);
    let taken = pending.take_full(1, now, |_| 3);
    let taken: Vec<JobId> = taken.iter().map(|ready| ready.hint.id).collect();
    assert_eq!(taken, [hints[3].id, hints[4].id, addressed.id]);
    assert_eq!(pending.full(), 3);
    pending.try_again(|_| 1);
    assert_eq!(pop(&mut pending, 1), Some(hints[0].id));
    assert_eq!(pending.take_full(1, now, |_| 0).len(), 2);
    assert_eq!(pending.full(), 0);
}

#[test]
fn a_blocked_lane_holds_up_no_other_lane_and_no_rescued_or_woken_job() {
    let mut pending = pending();
    push(&mut pending, 0, 1);
    let other = push(&mut pending, 1, 2);
    pending.block(0);
    assert_eq!((pending.ready(), pending.len()), (1, 2));
    assert!(!pending.waits(0, 1) && pending.waits(1, 1));
    assert_eq!(
        (pop(&mut pending, 0), pop(&mut pending, 1)),
        (None, Some(other))
    );
    let woken = wake(&mut pending, 0);
    assert_eq!(pop(&mut pending, 0), Some(woken));
    assert!(pending.unblock(0) && !pending.unblock(0));
    assert!(pop(&mut pending, 0).is_some());
    pending.block(0);
    pending.take(0);
    assert!(!pending.unblock(0), "a lane that leaves is not blocked");
}

#[test]
fn a_rescued_job_that_waits_for_a_slot_of_its_type_takes_no_other_ones_turn() {
    let mut pending = pending();
    let [first, second, third] = ["mail"; 3].map(of_type);
    for (hint, rescued) in [(&first, true), (&second, false), (&third, false)] {
        let of = Arrival {
            rescued,
            ..arrival(0, 0)
        };
        let hint = hint.clone();
        pending.set_aside(Waiting { hint, of });
    }
    pending.try_again(|_| 1);
    assert_eq!((pending.rescued(), pending.full()), (1, 1));
    let next = pending.pop(0, 0).map(|waiting| waiting.hint.id);
    assert_eq!(next, Some(second.id), "there is no room for a rescued one");
    let next = pending.pop(0, 1).map(|waiting| waiting.hint.id);
    assert_eq!(next, Some(first.id));
}

#[test]
fn of_a_full_type_rescued_and_woken_jobs_start_first_and_woken_ones_stay_here() {
    let mut pending = pending();
    let [plain, woken, rescued] = ["mail"; 3].map(of_type);
    let mut of = arrival(0, 0);
    pending.set_aside(Waiting {
        hint: plain.clone(),
        of,
    });
    of.woken = true;
    pending.set_aside(Waiting {
        hint: woken.clone(),
        of,
    });
    (of.woken, of.rescued) = (false, true);
    pending.set_aside(Waiting {
        hint: rescued.clone(),
        of,
    });
    let now = Instant::now();
    let left = pending.take_full(0, now, |_| 1);
    let left: Vec<JobId> = left.iter().map(|ready| ready.hint.id).collect();
    assert_eq!(left, [plain.id]);
    pending.try_again(|_| 1);
    let next = pending.pop(0, 1).map(|waiting| waiting.hint.id);
    assert_eq!(next, Some(rescued.id));
    pending.try_again(|_| 1);
    assert_eq!(pop(&mut pending, 0), Some(woken.id));
}

#[test]
fn a_marker_waits_for_its_own_lane_only() {
    let mut pending = pending();
    push(&mut pending, 0, 1);
    pending.push_marker(0, marker(7), ticket(2));
    pending.push_marker(1, marker(8), ticket(3));
    let later = push(&mut pending, 1, 4);
    let (lane, decided, _) = pending.decided_marker().expect("nothing stands before it");
    assert_eq!((lane.0.as_str(), decided.number), ("low", 8));
    assert!(pending.decided_marker().is_none());
    assert_eq!(pop(&mut pending, 1), Some(later));
    // A hint that is put back delays the marker again.
    let waiting = pending.pop(0, 0).expect("a hint");
    assert!(!pending.waits(0, 0), "a marker is not passed");
    assert!(pending.pop(0, 0).is_none());
    pending.put_back(waiting);
    assert!(pending.decided_marker().is_none());
    pop(&mut pending, 0);
    assert_eq!(pending.decided_marker().expect("decided").1.number, 7);
    assert_eq!(pending.len(), 0);
}

#[test]
fn what_is_tried_again_keeps_its_place() {
    let mut pending = pending();
    let ids: Vec<JobId> = (1..=4).map(|n| push(&mut pending, 0, n)).collect();
    let batch: Vec<Waiting> = (0..3).filter_map(|_| pending.pop(0, 0)).collect();
    for waiting in batch.into_iter().rev() {
        pending.put_back(waiting);
    }
    let again: Vec<JobId> = std::iter::from_fn(|| pop(&mut pending, 0)).collect();
    assert_eq!(again, ids);
}

#[test]
fn a_lane_leaves_with_each_message_once_and_its_own_hints() {
    let mut pending = pending();
    for number in [1, 1, 2, 0] {
        push(&mut pending, 1, number);
    }
    pending.push_marker(1, marker(1), ticket(3));
    let other = push(&mut pending, 0, 9);
    let left = pending.take(1);
    assert_eq!(left.tickets, [ticket(1), ticket(2), ticket(3)]);
    assert_eq!((left.hints, left.own.len()), (3, 1));
    assert_eq!(left.own[0].lane.0, "low");
    assert_eq!(pending.len(), 1);
    assert!(pending.decided_marker().is_none());
    assert_eq!(pop(&mut pending, 0), Some(other));
}

#[test]
fn a_lane_that_waits_in_vain_is_named_and_one_that_is_served_is_not() {
    let mut pending = pending();
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    push(&mut pending, 0, 1);
    push(&mut pending, 1, 2);
    let high_only = |place| place == 0;
    // Nothing is overdue yet: a lane must have waited for three seconds.
    assert_eq!(pending.passed_over(at(10), at(7), high_only), None);
    assert_eq!(pending.passed_over(at(12), at(9), high_only), None);
    assert_eq!(pending.passed_over(at(13), at(10), high_only), Some(1));
    // A lane that was served once starts to wait again.
    assert_eq!(pending.passed_over(at(13), at(10), |_| true), None);
    assert_eq!(pending.passed_over(at(14), at(11), high_only), None);
    pop(&mut pending, 1);
    assert_eq!(pending.passed_over(at(30), at(27), high_only), None);
}

#[test]
fn a_lane_that_nobody_asked_for_is_decided_with_the_last() {
    let pending = pending();
    assert_eq!(pending.place(&Lane("high".to_owned())), 0);
    assert_eq!(pending.place(&Lane("low".to_owned())), 1);
    assert_eq!(pending.place(&Lane("other".to_owned())), 1);
}

#[test]
fn a_hint_that_waits_for_a_slot_of_its_type_was_still_refused() {
    let mut pending = pending();
    let of = Arrival {
        tried: Tried::Refused(7),
        ..arrival(0, 0)
    };
    let hint = of_type("mail");
    pending.set_aside(Waiting { hint, of });
    pending.try_again(|_| 1);
    let waiting = pending.pop(0, 0).unwrap();
    assert!(waiting.of.is_full() && matches!(waiting.of.tried, Tried::Refused(7)));
    pending.push_again(waiting);
    assert!(!pending.pop(0, 0).unwrap().of.is_full());
}
