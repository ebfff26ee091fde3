//! The order in which a node starts the jobs of a lane whose hints it holds.
//!
//! Hints carry ids, so the node asks the database for the properties of the jobs while it has more
//! hints than free slots. The order is that of Camunda's acquisition: by priority, then timers
//! before other jobs, then by due date, each only if it is asked for.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};

/// The order in which a node starts the jobs of a lane, among those whose hints it holds. Several
/// preferences apply in Camunda's order: priority, timers, due date. The default is the order of
/// arrival, which costs nothing. Any preference costs up to one more statement for each statement
/// that locks jobs, and only while more hints wait on the node than it has free slots.
///
/// Written as words: `priority,timers,due-date`.
///
/// ```
/// use jobwire_core::StartOrder;
///
/// let order = StartOrder::default().by_priority().by_due_date();
/// assert_eq!(order.to_string(), "priority,due-date");
/// assert_eq!("priority, due-date".parse(), Ok(order));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartOrder {
    priority: bool,
    timers: bool,
    due_date: bool,
}

impl StartOrder {
    /// Starts jobs of a larger priority first. Camunda: `jobExecutorAcquireByPriority`.
    #[must_use]
    pub fn by_priority(mut self) -> Self {
        self.priority = true;
        self
    }

    /// Starts timer jobs before others, among jobs of the same priority if priorities count.
    /// Camunda: `jobExecutorPreferTimerJobs`.
    #[must_use]
    pub fn timers_first(mut self) -> Self {
        self.timers = true;
        self
    }

    /// Starts jobs with an earlier due date first, among those that the other preferences do not
    /// tell apart. A job without a due date counts as due since it became ready. Camunda:
    /// `jobExecutorAcquireByDueDate`.
    #[must_use]
    pub fn by_due_date(mut self) -> Self {
        self.due_date = true;
        self
    }

    /// Returns whether jobs start in the order in which their hints arrive.
    #[must_use]
    pub fn is_arrival(self) -> bool {
        self == Self::default()
    }

    /// Returns the place of a job of this rank. Jobs with a smaller one start first.
    pub(crate) fn place(self, rank: &Rank) -> Place {
        Place {
            priority: self.priority.then_some(Reverse(rank.priority)),
            timer: self.timers.then_some(Reverse(rank.timer)),
            due_at: self.due_date.then_some(rank.due_at),
        }
    }
}

/// The properties of a ready job by which a [`StartOrder`] orders it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rank {
    /// The priority.
    pub priority: i64,
    /// Whether the job is a timer.
    pub timer: bool,
    /// The due date, or the time at which the job became ready if it has none.
    pub due_at: DateTime<Utc>,
}

/// The place of a job in a [`StartOrder`]. Fields that do not count are equal for all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    priority: Option<Reverse<i64>>,
    timer: Option<Reverse<bool>>,
    due_at: Option<DateTime<Utc>>,
}

impl fmt::Display for StartOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.priority, "priority"),
            (self.timers, "timers"),
            (self.due_date, "due-date"),
        ];
        let words: Vec<&str> = words
            .iter()
            .filter_map(|(counts, word)| counts.then_some(*word))
            .collect();
        f.write_str(&words.join(","))
    }
}

impl FromStr for StartOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect();
        let order = words
            .iter()
            .try_fold(Self::default(), |order, word| match *word {
                "priority" => Ok(order.by_priority()),
                "timers" => Ok(order.timers_first()),
                "due-date" => Ok(order.by_due_date()),
                _ => Err(format!(
                    "`{word}` is not known; write `priority`, `timers`, `due-date`, or several of \
                     them, separated by commas"
                )),
            })?;
        let before = |at: usize| words.iter().take(at);
        let twice = words
            .iter()
            .enumerate()
            .find(|(at, word)| before(*at).any(|other| other == *word));
        if let Some((_, word)) = twice {
            return Err(format!("has `{word}` twice; remove one"));
        }
        let fixed = order.to_string();
        if fixed == words.join(",") {
            Ok(order)
        } else {
            Err(format!(
                "has another order than it applies in; write `{fixed}`"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(priority: i64, timer: bool, due: i64) -> Rank {
        Rank {
            priority,
            timer,
            due_at: DateTime::from_timestamp(due, 0).expect("a date"),
        }
    }

    /// Sorts these ranks and returns their former positions.
    fn sorted(order: StartOrder, ranks: &[Rank]) -> Vec<usize> {
        let mut places: Vec<usize> = (0..ranks.len()).collect();
        places.sort_by_key(|at| order.place(&ranks[*at]));
        places
    }

    #[test]
    fn preferences_apply_in_camundas_order() {
        let ranks = [
            rank(1, false, 10),
            rank(5, false, 30),
            rank(5, true, 40),
            rank(5, false, 20),
            rank(1, true, 50),
        ];
        let arrival = StartOrder::default();
        assert_eq!(sorted(arrival, &ranks), [0, 1, 2, 3, 4]);
        assert_eq!(sorted(arrival.by_priority(), &ranks), [1, 2, 3, 0, 4]);
        assert_eq!(sorted(arrival.timers_first(), &ranks), [2, 4, 0, 1, 3]);
        assert_eq!(sorted(arrival.by_due_date(), &ranks), [0, 3, 1, 2, 4]);
        let by_priority_and_date = arrival.by_due_date().by_priority();
        assert_eq!(sorted(by_priority_and_date, &ranks), [3, 1, 2, 0, 4]);
        let all = arrival.by_priority().timers_first().by_due_date();
        assert_eq!(sorted(all, &ranks), [2, 3, 1, 4, 0]);
    }

    #[test]
    fn the_words_are_read_and_written() {
        for (text, written) in [
            ("", ""),
            ("priority , due-date", "priority,due-date"),
            ("timers", "timers"),
        ] {
            let order: StartOrder = text.parse().expect(text);
            assert_eq!(order.to_string(), written);
        }
        let said = "priority,oldest"
            .parse::<StartOrder>()
            .expect_err("unknown");
        assert!(
            said.contains("`oldest` is not known; write `priority`"),
            "{said}"
        );
        for (text, part) in [
            ("due-date,priority", "write `priority,due-date`"),
            ("priority,priority", "has `priority` twice; remove one"),
        ] {
            let said = text.parse::<StartOrder>().expect_err(text);
            assert!(said.contains(part), "{said}");
        }
    }
}
