//! Hand-written histories with and without a fault.

use super::*;
use jobwire_core::{Fence, JobId, NodeId};
use std::sync::Arc;
use uuid::Uuid;

const LEASE: Micros = 3_000_000;

/// Writes a history: each entry is a millisecond later than the previous one.
#[derive(Default)]
struct Writer {
    now: Micros,
    number: u64,
    entries: Vec<Entry>,
}

impl Writer {
    fn add(&mut self, job: JobId, event: Event) -> &mut Self {
        self.now += 1_000;
        self.number += 1;
        self.entries
            .push(Entry::at(self.now, self.number, job, event));
        self
    }

    fn pass(&mut self, time: Micros) -> &mut Self {
        self.now += time;
        self
    }

    fn create(&mut self, creation: Creation) -> JobId {
        let job = JobId::generate();
        self.add(job, Event::Created(Arc::new(creation)));
        job
    }

    fn lock(&mut self, job: JobId, owner: NodeId, fence: i64) -> &mut Self {
        let event = Event::Locked {
            owner,
            fence: Fence::new(fence),
            expires_at: self.now + 1_000 + LEASE,
        };
        self.add(job, event)
    }

    fn start(&mut self, job: JobId, owner: NodeId, fence: i64) -> &mut Self {
        let fence = Fence::new(fence);
        self.add(job, Event::Started { owner, fence })
    }

    fn run(&mut self, job: JobId, owner: NodeId, fence: i64, answer: Answer) -> &mut Self {
        self.start(job, owner, fence);
        let fence = Fence::new(fence);
        self.add(
            job,
            Event::Ended {
                owner,
                fence,
                answer,
            },
        )
    }

    fn complete(&mut self, job: JobId, owner: NodeId, fence: i64) -> &mut Self {
        let fence = Fence::new(fence);
        self.add(job, Event::Completed { owner, fence })
    }

    fn whole(&mut self, job: JobId, owner: NodeId, fence: i64) -> &mut Self {
        self.lock(job, owner, fence)
            .run(job, owner, fence, Answer::Done)
            .complete(job, owner, fence)
    }

    fn fail(&mut self, job: JobId, owner: NodeId, fence: i64, retries: i32) -> &mut Self {
        let to = Waits::Timer(self.now + 10_000);
        let fence = Fence::new(fence);
        self.add(
            job,
            Event::Failed {
                owner,
                fence,
                retries,
                to,
            },
        )
    }

    fn check(&self) -> Report {
        self.check_with(Limits::default())
    }

    fn check_with(&self, limits: Limits) -> Report {
        Checker::check(limits, self.entries.clone())
    }

    #[track_caller]
    fn breaks(&self, invariant: Invariant) {
        let report = self.check();
        assert!(report.breaks(invariant), "not {invariant:?} but {report}");
    }

    #[track_caller]
    fn holds(&self) -> Report {
        let report = self.check();
        assert!(report.holds(), "{report}");
        report
    }
}

fn plain(writer: &mut Writer) -> (JobId, NodeId) {
    (writer.create(Creation::plain(1)), NodeId::generate())
}

#[test]
fn a_job_that_is_done_once_is_fine() {
    let mut w = Writer::default();
    let (job, node) = plain(&mut w);
    w.add(job, Event::Published).whole(job, node, 1);
    let counts = w.holds().counts;
    assert_eq!((counts.committed, counts.completed, counts.runs), (1, 1, 1));
}

#[test]
fn a_takeover_after_the_lease_is_fine_and_is_counted() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    let b = NodeId::generate();
    w.lock(job, a, 1).start(job, a, 1).pass(LEASE);
    w.add(
        job,
        Event::TakenOff {
            fence: Fence::new(1),
        },
    );
    w.lock(job, b, 2).start(job, b, 2);
    // The first node resumes; its completion changes nothing, so there is none.
    let ended = |owner, fence| Event::Ended {
        owner,
        fence: Fence::new(fence),
        answer: Answer::Done,
    };
    w.add(job, ended(a, 1));
    w.add(job, ended(b, 2)).complete(job, b, 2);
    let counts = w.holds().counts;
    assert_eq!((counts.takeovers, counts.duplicate_runs), (1, 1));
    assert!(counts.slowest_takeover >= 1_000);
}

#[test]
fn a_job_that_is_never_finished_is_lost() {
    let mut w = Writer::default();
    let (job, node) = plain(&mut w);
    w.breaks(Invariant::I1);
    w.lock(job, node, 1);
    w.breaks(Invariant::I1);
    let limits = Limits {
        drained: false,
        ..Limits::default()
    };
    assert!(w.check_with(limits).holds());
}

#[test]
fn a_completion_without_a_run_is_no_execution() {
    let mut w = Writer::default();
    let (job, node) = plain(&mut w);
    w.lock(job, node, 1).complete(job, node, 1);
    w.breaks(Invariant::I1);
}

#[test]
fn an_unknown_commit_may_have_happened_or_not() {
    let mut w = Writer::default();
    w.create(Creation {
        outcome: Outcome::Unknown,
        ..Creation::plain(1)
    });
    w.holds();
}

#[test]
fn a_rolled_back_job_leaves_no_trace() {
    for event in [
        Event::Published,
        Event::Locked {
            owner: NodeId::generate(),
            fence: Fence::new(1),
            expires_at: LEASE,
        },
        Event::Started {
            owner: NodeId::generate(),
            fence: Fence::new(1),
        },
    ] {
        let mut w = Writer::default();
        let job = w.create(Creation {
            outcome: Outcome::RolledBack,
            ..Creation::plain(1)
        });
        w.holds();
        w.add(job, event);
        w.breaks(Invariant::I2);
    }
}

#[test]
fn a_hint_does_not_leave_before_the_commit() {
    let mut w = Writer::default();
    let (job, node) = plain(&mut w);
    w.add(job, Event::Published).whole(job, node, 1);
    w.holds();
    w.entries[0].visible += 5_000;
    w.breaks(Invariant::I2);
}

#[test]
fn what_nobody_created_does_not_run() {
    let mut w = Writer::default();
    let node = NodeId::generate();
    w.whole(JobId::generate(), node, 1);
    w.breaks(Invariant::I2);
}

#[test]
fn a_second_completion_is_seen() {
    let mut w = Writer::default();
    let (job, node) = plain(&mut w);
    w.whole(job, node, 1).complete(job, node, 1);
    w.breaks(Invariant::I3);
}

#[test]
fn a_completing_transaction_leaves_one_row_under_its_own_lock() {
    let transactional = || Creation {
        transactional: true,
        ..Creation::plain(1)
    };
    let node = NodeId::generate();
    for effects in [&[][..], &[1, 1], &[2]] {
        let mut w = Writer::default();
        let job = w.create(transactional());
        w.whole(job, node, 1);
        for fence in effects {
            w.add(
                job,
                Event::Effect {
                    fence: Fence::new(*fence),
                },
            );
        }
        w.breaks(Invariant::I3);
    }
    let mut w = Writer::default();
    let job = w.create(transactional());
    w.whole(job, node, 1);
    w.add(
        job,
        Event::Effect {
            fence: Fence::new(1),
        },
    );
    w.holds();
}

/// The transaction of the former run is rolled back if the database failed it.
#[test]
fn only_a_handler_in_its_transaction_runs_again_under_a_lock() {
    for transactional in [true, false] {
        let mut w = Writer::default();
        let node = NodeId::generate();
        let job = w.create(Creation {
            transactional,
            ..Creation::plain(1)
        });
        w.lock(job, node, 1);
        let started = || Event::Started {
            owner: node,
            fence: Fence::new(1),
        };
        w.add(job, started());
        w.add(job, started());
        w.add(
            job,
            Event::Ended {
                owner: node,
                fence: Fence::new(1),
                answer: Answer::Done,
            },
        );
        w.complete(job, node, 1);
        if transactional {
            w.add(
                job,
                Event::Effect {
                    fence: Fence::new(1),
                },
            );
            w.holds();
        } else {
            w.breaks(Invariant::I4);
        }
    }
}

#[test]
fn a_lock_beside_a_living_lock_is_seen() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 1);
    w.whole(job, NodeId::generate(), 2);
    w.breaks(Invariant::I4);
}

#[test]
fn a_holder_that_lost_its_lock_changes_nothing() {
    let lost = |event: Event| {
        let mut w = Writer::default();
        let (job, a) = plain(&mut w);
        w.lock(job, a, 1).start(job, a, 1).pass(LEASE);
        let b = NodeId::generate();
        w.lock(job, b, 2).start(job, b, 2);
        w.entries.iter_mut().for_each(|entry| {
            if let Event::Started { owner, fence } = &mut entry.event
                && fence.number() == 1
            {
                *owner = NodeId::from_uuid(Uuid::nil());
            }
            if let Event::Locked { owner, fence, .. } = &mut entry.event
                && fence.number() == 1
            {
                *owner = NodeId::from_uuid(Uuid::nil());
            }
        });
        w.add(job, event);
        w.breaks(Invariant::I4);
    };
    let (owner, fence) = (NodeId::from_uuid(Uuid::nil()), Fence::new(1));
    lost(Event::Completed { owner, fence });
    lost(Event::Released { owner, fence });
    lost(Event::DeadLettered { owner, fence });
    lost(Event::Renewed {
        owner,
        fence,
        expires_at: 9 * LEASE,
    });
}

/// A completion without a fence in its guard deletes the lease of the current holder.
#[test]
fn a_completion_under_a_running_handler_is_seen() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    let b = NodeId::generate();
    w.lock(job, a, 1).start(job, a, 1).pass(LEASE);
    w.lock(job, b, 2).start(job, b, 2).complete(job, b, 2);
    w.breaks(Invariant::I4);
}

#[test]
fn a_sweeper_without_a_guard_is_seen() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 1);
    w.add(
        job,
        Event::TakenOff {
            fence: Fence::new(1),
        },
    );
    w.breaks(Invariant::I4);
}

#[test]
fn exclusive_jobs_follow_each_other() {
    let mut w = Writer::default();
    let node = NodeId::generate();
    let jobs: Vec<_> = (1..=3)
        .map(|order| w.create(Creation::exclusive(order, "one")))
        .collect();
    for (job, fence) in jobs.into_iter().zip(1..) {
        w.whole(job, node, fence);
    }
    assert_eq!(w.holds().counts.exclusive_locks, 3);
}

#[test]
fn an_overlap_of_exclusive_jobs_is_seen() {
    let mut w = Writer::default();
    let (a, b) = (NodeId::generate(), NodeId::generate());
    let one = w.create(Creation::exclusive(1, "one"));
    let two = w.create(Creation::exclusive(2, "one"));
    let other = w.create(Creation::exclusive(3, "two"));
    w.lock(one, a, 1);
    w.whole(other, b, 2);
    w.whole(two, b, 3);
    w.run(one, a, 1, Answer::Done).complete(one, a, 1);
    w.breaks(Invariant::I5);
    assert_eq!(w.check().violations, 1);
}

#[test]
fn a_younger_exclusive_job_does_not_overtake() {
    let mut w = Writer::default();
    let node = NodeId::generate();
    let one = w.create(Creation::exclusive(1, "one"));
    let two = w.create(Creation::exclusive(2, "one"));
    w.whole(two, node, 1).whole(one, node, 2);
    w.breaks(Invariant::I5);
    let limits = Limits {
        order_slack: 1_000_000,
        ..Limits::default()
    };
    assert!(
        w.check_with(limits).holds(),
        "it was ready for a moment only"
    );
}

#[test]
fn an_exclusive_job_that_waits_for_a_retry_lets_others_pass() {
    let mut w = Writer::default();
    let node = NodeId::generate();
    let one = w.create(Creation::exclusive(1, "one"));
    let two = w.create(Creation::exclusive(2, "one"));
    w.lock(one, node, 1)
        .run(one, node, 1, Answer::Failed)
        .fail(one, node, 1, 2);
    w.whole(two, node, 2).pass(20_000);
    w.add(one, Event::Ready).whole(one, node, 3);
    w.holds();
}

#[test]
fn fences_grow() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 2).pass(LEASE).whole(job, a, 1);
    w.breaks(Invariant::I6);
}

#[test]
fn an_attempt_costs_what_the_handler_answered() {
    for (answer, retries, fine) in [
        (Answer::Failed, 2, true),
        (Answer::Failed, 3, false),
        (Answer::Failed, 1, false),
        (Answer::Again, 3, true),
        (Answer::Again, 2, false),
    ] {
        let mut w = Writer::default();
        let (job, node) = plain(&mut w);
        w.lock(job, node, 1).run(job, node, 1, answer);
        w.fail(job, node, 1, retries).pass(20_000);
        w.add(job, Event::Ready).whole(job, node, 2);
        if fine {
            w.holds();
        } else {
            w.breaks(Invariant::I7);
        }
    }
}

#[test]
fn a_dead_letter_has_used_up_its_attempts() {
    for (retries, fine) in [(1, true), (2, false)] {
        let mut w = Writer::default();
        let job = w.create(Creation {
            retries,
            ..Creation::plain(1)
        });
        let owner = NodeId::generate();
        w.lock(job, owner, 1).run(job, owner, 1, Answer::Failed);
        let fence = Fence::new(1);
        w.add(job, Event::DeadLettered { owner, fence });
        if fine {
            w.holds();
        } else {
            w.breaks(Invariant::I7);
        }
    }
}

#[test]
fn a_row_that_vanished_or_stayed_is_seen() {
    let limits = || Limits {
        found: true,
        ..Limits::default()
    };
    let mut w = Writer::default();
    let (job, node) = plain(&mut w);
    assert!(w.check_with(limits()).breaks(Invariant::I8));
    w.whole(job, node, 1);
    assert!(w.check_with(limits()).holds());
    w.add(job, Event::Found(Place::Executable));
    assert!(w.check_with(limits()).breaks(Invariant::I8));
}

#[test]
fn nothing_runs_before_its_due_date() {
    let mut w = Writer::default();
    let job = w.create(Creation {
        due: Some(1_000_000),
        waits: true,
        ..Creation::plain(1)
    });
    w.add(job, Event::Ready).whole(job, NodeId::generate(), 1);
    w.breaks(Invariant::I10);
}

#[test]
fn a_parent_has_its_children_exactly_once() {
    for (seen, fine) in [(1, false), (2, true), (3, false)] {
        let mut w = Writer::default();
        let node = NodeId::generate();
        let parent = w.create(Creation {
            children: 2,
            ..Creation::plain(1)
        });
        w.whole(parent, node, 1);
        for order in 0..seen {
            let child = w.create(Creation {
                parent: Some(parent),
                ..Creation::plain(2 + order)
            });
            w.whole(child, node, 2 + order);
        }
        if fine {
            w.holds();
        } else {
            w.breaks(Invariant::I3);
        }
    }
}

#[test]
fn a_series_neither_forks_nor_ends_early_nor_hurries() {
    let every = 1_000_000;
    let series = |occurrences: &[(u32, Micros)]| {
        let mut w = Writer::default();
        let (id, node) = (Uuid::new_v4(), NodeId::generate());
        w.pass(10 * every);
        for (fence, (left, due)) in (1..).zip(occurrences) {
            let job = w.create(Creation {
                due: Some(*due),
                series: Some(Series {
                    id,
                    left: *left,
                    every,
                }),
                ..Creation::plain(fence)
            });
            w.whole(job, node, fence);
        }
        w
    };
    series(&[(3, 0), (2, every), (1, 2 * every)]).holds();
    series(&[(3, 0), (2, every), (2, every), (1, 2 * every)]).breaks(Invariant::I3);
    series(&[(3, 0), (2, every)]).breaks(Invariant::I3);
    series(&[(2, 0), (1, every / 2)]).breaks(Invariant::I10);
}

#[test]
fn a_storm_of_hints_is_seen() {
    let mut w = Writer::default();
    let (job, node) = plain(&mut w);
    w.add(job, Event::Rehinted)
        .add(job, Event::Rehinted)
        .whole(job, node, 1);
    let limits = |rehints| Limits {
        rehints: Some(rehints),
        ..Limits::default()
    };
    assert!(w.check_with(limits(2)).holds());
    assert!(w.check_with(limits(1)).breaks(Invariant::I11));
}

#[test]
fn an_id_is_not_given_out_twice() {
    let mut w = Writer::default();
    let (job, node) = plain(&mut w);
    w.add(job, Event::Created(Arc::new(Creation::plain(2))));
    w.whole(job, node, 1);
    w.breaks(Invariant::I12);
}

#[test]
fn a_violation_comes_with_the_whole_history() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 1).whole(job, NodeId::generate(), 2);
    let report = w.check().to_string();
    assert!(report.contains(&job.to_string()), "{report}");
    assert!(
        report.contains("Locked") && report.contains("Completed"),
        "{report}"
    );
}

/// Adds a dead holder's lease that the sweeper ends, and the next lock `late` after its end.
fn takeover(w: &mut Writer, late: Micros) -> JobId {
    let (job, a) = plain(w);
    let b = NodeId::generate();
    let fence = i64::try_from(w.number).unwrap_or_default() * 10;
    w.lock(job, a, fence).start(job, a, fence).pass(LEASE);
    w.add(job, taken_off(fence)).pass(late);
    w.whole(job, b, fence + 1);
    job
}

fn taken_off(fence: i64) -> Event {
    Event::TakenOff {
        fence: Fence::new(fence),
    }
}

fn with_bound(bound: Micros) -> Limits {
    Limits {
        takeover: Some(bound),
        ..Limits::default()
    }
}

#[test]
fn slow_takeovers_are_seen_and_one_of_a_hundred_is_not() {
    let mut w = Writer::default();
    for late in [0, 0, 0, 5_000_000] {
        takeover(&mut w, late);
    }
    assert!(w.check_with(with_bound(3_000_000)).holds());
    takeover(&mut w, 4_000_000);
    assert!(w.check_with(with_bound(3_000_000)).breaks(Invariant::I13));
}

#[test]
fn takeovers_beside_an_outage_do_not_count() {
    let mut w = Writer::default();
    for _ in 0..3 {
        takeover(&mut w, 5_000_000);
    }
    let mut limits = with_bound(3_000_000);
    limits.calendar.outage(0, w.now);
    let report = w.check_with(limits);
    assert!(report.holds(), "{report}");
    assert_eq!(report.counts.disturbed_takeovers, 3);
}

#[test]
fn a_machine_that_stood_still_leaves_no_calm() {
    let mut w = Writer::default();
    for _ in 0..3 {
        takeover(&mut w, 5_000_000);
    }
    let mut limits = with_bound(3_000_000);
    limits.calendar.calm(0);
    assert!(w.check_with(limits.clone()).breaks(Invariant::I13));
    limits.calendar.stall(0, w.now);
    let report = w.check_with(limits);
    assert!(report.holds(), "{report}");
    assert_eq!(report.counts.calm_takeovers, 0);
    // A stall before the calm changes nothing.
    let mut limits = with_bound(3_000_000);
    limits.calendar.stall(-2, -1);
    limits.calendar.calm(0);
    assert!(w.check_with(limits).breaks(Invariant::I13));
}

#[test]
fn a_lease_that_a_jump_of_the_clock_ended_is_seen() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 1).start(job, a, 1).pass(10 * LEASE);
    let mut limits = Limits::default();
    limits.calendar.jump(w.now, 10 * LEASE, LEASE);
    w.add(job, taken_off(1)).whole(job, NodeId::generate(), 2);
    assert!(w.holds().holds());
    assert!(w.check_with(limits).breaks(Invariant::I4));
}

fn strikes(before: i32, after: i32, taken_off: Option<i64>) -> Event {
    Event::Strikes(Strikes {
        before,
        after,
        taken_off: taken_off.map(Fence::new),
        alone: false,
    })
}

#[test]
fn strikes_follow_the_ends_of_leases() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 1).pass(LEASE).add(job, taken_off(1));
    w.add(job, strikes(0, 1, Some(1)));
    // The holder is alive and takes it back.
    w.add(job, strikes(1, 0, None));
    w.lock(job, a, 2).pass(LEASE).add(job, taken_off(2));
    w.add(job, strikes(0, 1, Some(2)));
    w.whole(job, a, 3).holds();
}

#[test]
fn a_strike_that_is_taken_back_twice_is_seen() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 1).pass(LEASE).add(job, taken_off(1));
    w.add(job, strikes(0, 1, Some(1)));
    w.add(job, strikes(1, 0, None))
        .add(job, strikes(0, -1, None));
    w.whole(job, a, 2).breaks(Invariant::I14);
}

#[test]
fn a_job_keeps_its_strikes_while_it_waits_for_a_permit() {
    for keeps in [true, false] {
        let mut w = Writer::default();
        let (job, a) = plain(&mut w);
        let (owner, fence) = (a, Fence::new(2));
        w.lock(job, a, 1).pass(LEASE).add(job, taken_off(1));
        w.add(job, strikes(0, 1, Some(1))).lock(job, a, 2);
        w.add(
            job,
            if keeps {
                Event::Parked { owner, fence }
            } else {
                Event::Released { owner, fence }
            },
        );
        w.lock(job, a, 3).add(job, strikes(1, 0, None));
        w.run(job, a, 3, Answer::Done).complete(job, a, 3);
        if keeps {
            w.holds();
        } else {
            w.breaks(Invariant::I14);
        }
    }
}

#[test]
fn a_strike_without_a_death_is_seen() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 1).pass(LEASE).add(job, taken_off(1));
    w.add(job, strikes(0, 2, Some(1)));
    w.whole(job, a, 2).breaks(Invariant::I14);
}

#[test]
fn quarantine_before_its_strikes_is_seen() {
    let mut w = Writer::default();
    let (job, a) = plain(&mut w);
    w.lock(job, a, 1).pass(LEASE).add(job, taken_off(1));
    w.add(job, strikes(0, 1, Some(1)));
    w.lock(job, a, 2);
    let (owner, fence) = (a, Fence::new(2));
    w.add(job, Event::DeadLettered { owner, fence });
    let limits = Limits {
        quarantine: Some(3),
        ..Limits::default()
    };
    assert!(w.check_with(limits).breaks(Invariant::I7));
}
