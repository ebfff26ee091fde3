//! The hints that this node holds. The leader asks for them before it treats their jobs as orphans
//! ([`crate::leader::sweeper`]).
//!
//! A node holds a hint from its receipt until its message is settled. A hint that was requeued is
//! still on its way, so the answer includes it within the time that the question names.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::job::{JobId, Lane, NodeId};

/// Maximum number of questions that wait. Any client that may publish can send questions.
const MOST_QUESTIONS: usize = 64;
/// Maximum number of requeued hints that are remembered. Beyond it the oldest are forgotten, and
/// their jobs may be hinted twice.
const MOST_RETURNED: usize = 65_536;

/// The leader's question.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) to: NodeId,
    pub(crate) number: u64,
    pub(crate) lane: Lane,
    /// Hints that were requeued within this time count as held.
    pub(crate) within: Duration,
}

/// The questions that wait for the consumer.
#[derive(Default)]
pub(crate) struct Questions {
    waiting: Mutex<VecDeque<Question>>,
    asked: Notify,
}

impl Questions {
    /// Adds a question. Drops the oldest one when [`MOST_QUESTIONS`] wait.
    pub(crate) fn ask(&self, question: Question) {
        let mut waiting = self.waiting();
        // With two brokers each question arrives twice.
        let is_it = |asked: &Question| (asked.to, asked.number) == (question.to, question.number);
        if waiting.iter().any(is_it) {
            return;
        }
        if waiting.len() >= MOST_QUESTIONS {
            waiting.pop_front();
        }
        waiting.push_back(question);
        drop(waiting);
        self.asked.notify_one();
    }

    /// Waits for the next question. Cancel-safe.
    pub(crate) async fn next(&self) -> Question {
        loop {
            if let Some(question) = self.waiting().pop_front() {
                return question;
            }
            self.asked.notified().await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Question>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hints that were requeued, oldest first.
#[derive(Default)]
pub(crate) struct Returned(VecDeque<(Instant, usize, JobId)>);

impl Returned {
    /// Records that hints of the lane at this place were requeued.
    pub(crate) fn note(&mut self, place: usize, jobs: impl IntoIterator<Item = JobId>) {
        let now = Instant::now();
        self.0.extend(jobs.into_iter().map(|job| (now, place, job)));
        let more = self.0.len().saturating_sub(MOST_RETURNED);
        self.0.drain(..more);
    }

    /// Returns the hints of a lane that were requeued within this time.
    pub(crate) fn within(&self, place: usize, time: Duration) -> impl Iterator<Item = JobId> {
        let newest = self.0.iter().rev();
        let young = newest.take_while(move |(at, ..)| at.elapsed() <= time);
        young
            .filter(move |(_, of, _)| *of == place)
            .map(|(.., job)| *job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(number: u64) -> Question {
        Question {
            to: NodeId::generate(),
            number,
            lane: Lane::default(),
            within: Duration::ZERO,
        }
    }

    #[tokio::test]
    async fn questions_wait_in_their_order_and_the_oldest_are_dropped() {
        let questions = Questions::default();
        for number in 0..MOST_QUESTIONS as u64 + 2 {
            questions.ask(question(number));
        }
        assert_eq!(questions.next().await.number, 2);
        assert_eq!(questions.next().await.number, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_returned_is_told_of_for_as_long_as_is_asked() {
        let mut returned = Returned::default();
        let [old, young, other] = [(); 3].map(|()| JobId::generate());
        returned.note(0, [old]);
        tokio::time::advance(Duration::from_secs(10)).await;
        returned.note(0, [young]);
        returned.note(1, [other]);
        let within = |seconds| -> Vec<JobId> {
            let time = Duration::from_secs(seconds);
            returned.within(0, time).collect()
        };
        assert_eq!(within(5), [young]);
        assert_eq!(within(10), [young, old]);
    }

    #[test]
    fn so_many_returned_hints_are_remembered() {
        let mut returned = Returned::default();
        let jobs: Vec<JobId> = (0..MOST_RETURNED + 5).map(|_| JobId::generate()).collect();
        returned.note(0, jobs.iter().copied());
        assert_eq!(returned.0.len(), MOST_RETURNED);
        assert_eq!(
            returned.0.front().map(|(.., job)| *job),
            jobs.get(5).copied()
        );
    }
}
