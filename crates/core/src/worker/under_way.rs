//! Statements under way that may write leases for this node, and those that ended without an
//! answer.
//!
//! A lease of this node is usually in its [`LeaseBook`](crate::worker::lease_book::LeaseBook),
//! which records the leases of each answer. It is not in the book while the statement is under way,
//! nor after the answer was lost. This module distinguishes the two cases, so that
//! [`reconciliation`](crate::worker::lost_leases) adopts or releases only leases that no answer
//! will contain (protocol rule 6):
//!
//! * A statement is **under way** from before it is sent until its answer is recorded. The leases
//!   of an answer are **expected** until their jobs start.
//! * A statement without an answer raises a **doubt**. The doubt ends with the answer to a look
//!   that was sent after the database could no longer execute the statement.
//! * While a **look** at the database is open, the fences of all answers and of all jobs that start
//!   are remembered: the look may see their leases, which were not in its list when it began. (A
//!   job that is held by a row lock gets its lease later.)

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::job::{Fence, LockedJob};
use crate::store::{BatchOutcome, Claimed, Locked, MovedTimers, RowsCommitted};

/// The pause between the first two looks after a doubt. It doubles with each look, up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// An answer that contains leases.
pub(crate) trait Leases {
    /// Returns the jobs that were leased to this node.
    fn leased(&self) -> &[LockedJob];
}

impl Leases for Locked {
    fn leased(&self) -> &[LockedJob] {
        &self.jobs
    }
}

impl Leases for Claimed {
    fn leased(&self) -> &[LockedJob] {
        &self.jobs
    }
}

impl Leases for MovedTimers {
    fn leased(&self) -> &[LockedJob] {
        &self.locked
    }
}

impl Leases for BatchOutcome {
    fn leased(&self) -> &[LockedJob] {
        &self.next
    }
}

/// The leases of this answer are those of jobs that the node holds already.
impl Leases for RowsCommitted {
    fn leased(&self) -> &[LockedJob] {
        &[]
    }
}

/// An answer with this type contains no new leases.
impl Leases for () {
    fn leased(&self) -> &[LockedJob] {
        &[]
    }
}

/// An unknown outcome, and the time of the next look.
#[derive(Clone, Copy)]
struct Doubt {
    /// The time after which no statement that raised the doubt can take effect.
    until: Instant,
    next_look: Instant,
    pause: Duration,
}

/// The statements under way and the leases that they may have written. See the [module](self).
#[derive(Default)]
pub(crate) struct UnderWay {
    next: u64,
    open: BTreeSet<u64>,
    expected: HashMap<Fence, Instant>,
    /// Locks under which a handler has run here, and which may still be in the database. Cleared
    /// when a look begins without a doubt.
    used: HashSet<Fence>,
    doubt: Option<Doubt>,
    /// While a look is open: the fences of all answers and starts since it began.
    answered: Option<HashSet<Fence>>,
    /// Notified when a statement has ended.
    pub(crate) ended: Arc<Notify>,
}

impl UnderWay {
    /// Records that a statement is sent. Returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.next += 1;
        self.open.insert(self.next);
        self.next
    }

    /// Records that a statement has ended, with or without an answer.
    pub(crate) fn end(&mut self, statement: u64) {
        self.open.remove(&statement);
        self.ended.notify_waiters();
    }

    pub(crate) fn expect(&mut self, fence: Fence, now: Instant) {
        self.expected.insert(fence, now);
        self.is_known(fence);
    }

    /// Records a fence that the open look may find although it is not in the look's list.
    pub(crate) fn is_known(&mut self, fence: Fence) {
        if let Some(answered) = &mut self.answered {
            answered.insert(fence);
        }
    }

    /// Records that the job of this lease starts. Returns false if the lease was not expected: the
    /// start is too late, and another start has the lease.
    pub(crate) fn starts(&mut self, fence: Fence) -> bool {
        self.expected.remove(&fence).is_some()
    }

    /// Records that a statement without an answer may still take effect within this time.
    pub(crate) fn doubt(&mut self, now: Instant, within: Duration) {
        let until = now + within;
        let until = self.doubt.map_or(until, |doubt| doubt.until.max(until));
        self.doubt = Some(Doubt {
            until,
            next_look: now,
            pause: FIRST_PAUSE,
        });
    }

    /// Records that a handler ran under this lock. No second run may use the lock, because the
    /// first one may have passed the fence to other systems.
    pub(crate) fn note_used(&mut self, fence: Fence) {
        self.used.insert(fence);
    }

    /// Returns whether a handler has run under this lock.
    pub(crate) fn is_used(&self, fence: Fence) -> bool {
        self.used.contains(&fence)
    }

    pub(crate) fn in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Returns whether it is time for a look: there is a doubt, and no look is open.
    pub(crate) fn wants_look(&self, now: Instant) -> bool {
        self.answered.is_none() && self.doubt.is_some_and(|doubt| now >= doubt.next_look)
    }

    /// Begins a look. Forgets the leases whose jobs have not started for `patience`, so the look
    /// finds them again. Returns the fences that are still expected, or `None` while another look
    /// is open.
    pub(crate) fn begin_look(&mut self, now: Instant, patience: Duration) -> Option<Vec<Fence>> {
        if self.answered.is_some() {
            return None;
        }
        if self.doubt.is_none() {
            // The look that ended the doubt has found the locks that the database still had.
            self.used.clear();
        }
        self.answered = Some(HashSet::new());
        self.expected.retain(|_, since| now - *since < patience);
        Some(self.expected.keys().copied().collect())
    }

    /// Records the answer to the look that was sent at `sent`. Returns the number of the last
    /// statement that may have written leases that the look found.
    pub(crate) fn looked(&mut self, sent: Instant) -> u64 {
        if let Some(doubt) = &mut self.doubt {
            if sent >= doubt.until {
                self.doubt = None;
            } else {
                doubt.next_look = (sent + doubt.pause).min(doubt.until.max(sent + FIRST_PAUSE));
                doubt.pause = (doubt.pause * 2).min(LONGEST_PAUSE);
            }
        }
        self.next
    }

    /// Returns whether an answer or a start since the look began had this fence.
    pub(crate) fn knows(&self, fence: Fence) -> bool {
        let answered = self.answered.as_ref();
        answered.is_some_and(|answered| answered.contains(&fence))
    }

    /// Ends the look. Returns the leases among `unknown` that no answer contained or will contain.
    pub(crate) fn end_look(&mut self, unknown: Vec<LockedJob>) -> Vec<LockedJob> {
        let now = Instant::now();
        let strange = |locked: &LockedJob| !self.knows(locked.fence);
        let strange: Vec<LockedJob> = unknown.into_iter().filter(strange).collect();
        self.answered = None;
        for locked in &strange {
            self.expected.insert(locked.fence, now);
        }
        strange
    }

    /// Returns whether all statements up to this one have ended, with or without an answer.
    pub(crate) fn have_ended(&self, up_to: u64) -> bool {
        self.open.first().is_none_or(|first| *first > up_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);
    const WITHIN: Duration = Duration::from_secs(17);

    fn after(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubt_lasts_until_a_look_that_was_sent_after_the_statement_can_take_effect() {
        let mut under_way = UnderWay::default();
        let began = Instant::now();
        under_way.doubt(began, WITHIN);
        let (mut now, mut looks) = (began, 0);
        while under_way.in_doubt() {
            if under_way.wants_look(now) {
                assert!(under_way.begin_look(now, PATIENCE).is_some());
                under_way.looked(now);
                assert!(under_way.end_look(Vec::new()).is_empty());
                looks += 1;
            }
            now += Duration::from_millis(50);
        }
        assert!(now - began >= WITHIN, "{:?}", now - began);
        assert!((5..15).contains(&looks), "{looks} looks");
    }

    #[tokio::test(start_paused = true)]
    async fn one_look_is_open_at_a_time() {
        let mut under_way = UnderWay::default();
        under_way.doubt(Instant::now(), WITHIN);
        assert!(under_way.begin_look(Instant::now(), PATIENCE).is_some());
        assert!(under_way.begin_look(Instant::now(), PATIENCE).is_none());
        assert!(!under_way.wants_look(Instant::now()));
        under_way.end_look(Vec::new());
        assert!(under_way.wants_look(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_whose_job_never_starts_is_not_expected_for_ever() {
        let mut under_way = UnderWay::default();
        under_way.expect(Fence(7), Instant::now());
        assert_eq!(
            under_way.begin_look(after(1), PATIENCE),
            Some(vec![Fence(7)])
        );
        under_way.end_look(Vec::new());
        assert_eq!(under_way.begin_look(after(11), PATIENCE), Some(Vec::new()));
        assert!(!under_way.starts(Fence(7)), "a look tells of it by now");
    }

    #[test]
    fn a_look_waits_for_the_statements_that_were_under_way() {
        let mut under_way = UnderWay::default();
        let (first, second) = (under_way.begin(), under_way.begin());
        let seen = under_way.looked(Instant::now());
        let later = under_way.begin();
        assert!(!under_way.have_ended(seen));
        under_way.end(second);
        assert!(!under_way.have_ended(seen));
        under_way.end(first);
        assert!(under_way.have_ended(seen));
        assert!(!under_way.have_ended(later));
    }
}
