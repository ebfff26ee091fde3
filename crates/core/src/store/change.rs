//! Changes of jobs that an operator asks for, each in one transaction.

use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Serialize};

use super::{Result, StoreError};
use crate::job::JobState;

/// A change of jobs. A job keeps its id, its creation order and its correlation id.
///
/// | change | states | the job |
/// | --- | --- | --- |
/// | [`MakeExecutable`](Self::MakeExecutable) | timer | becomes executable; keeps its attempts |
/// | [`Reschedule`](Self::Reschedule) | executable, timer, suspended | waits for the due date |
/// | [`Suspend`](Self::Suspend) | executable, timer | moves to the suspended table |
/// | [`Activate`](Self::Activate) | suspended | returns to the timers, or becomes executable |
/// | [`MakeDeadLetter`](Self::MakeDeadLetter) | executable, timer, suspended | becomes a dead letter |
/// | [`SetRetries`](Self::SetRetries) | executable, timer, suspended | gets this number of attempts |
/// | [`SetPriority`](Self::SetPriority) | all | gets this priority, and its lane by the rules |
///
/// [`Operated`](super::Operated) tells the result for each job. A locked job is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// Makes timers and waiting retries executable before their due date.
    MakeExecutable,
    /// Sets the due date. An executable job becomes a timer. A due date that has passed makes the
    /// job executable in the next leader cycle. A suspended job keeps its table.
    Reschedule(DateTime<Utc>),
    /// Suspends single jobs. The activation of a scope that the job belongs to activates it, too.
    Suspend,
    /// Activates suspended jobs. A job that the suspension of a scope covers is not changed: end
    /// that suspension instead.
    Activate,
    /// Makes jobs dead letters, with this reason as the message. Longer reasons are cut to 4,000
    /// bytes.
    MakeDeadLetter(String),
    /// Sets the number of attempts left, 1 or more. To give attempts to a dead letter, use
    /// [`retry_many`](super::Store::retry_many).
    SetRetries(i32),
    /// Sets the priority. A job whose lane the rules chose gets the lane that they choose for the
    /// new priority, and if it is ready, it is hinted there. A job whose creator named the lane
    /// stays in it. A ready job that stays in its lane is hinted again if nodes take ranges of
    /// priorities.
    SetPriority(i64),
}

/// Maximum number of bytes of a reason, as of a handler's message.
const MAX_REASON: usize = 4_000;

impl Change {
    /// Checks the values of the change.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`], which names the field and the remedy.
    pub fn validate(&self) -> Result<()> {
        let wrong = match self {
            Self::Reschedule(due) if !(1..=262_142).contains(&due.year()) => {
                "field `due_at` is not within the years 1 to 262142; give a date of these years"
                    .to_owned()
            }
            Self::SetRetries(retries) if *retries < 1 => {
                format!("field `retries` is {retries}; give 1 or more: the next attempt counts")
            }
            Self::MakeDeadLetter(reason) if reason.contains('\0') => {
                "field `reason` contains a zero character; remove it".to_owned()
            }
            _ => return Ok(()),
        };
        Err(StoreError::InvalidChange(wrong))
    }

    /// Returns whether the change applies to jobs of this state.
    #[must_use]
    pub fn applies_to(&self, state: JobState) -> bool {
        match self {
            Self::SetPriority(_) => true,
            Self::MakeExecutable => state == JobState::Timer,
            Self::Suspend => matches!(state, JobState::Executable | JobState::Timer),
            Self::Activate => state == JobState::Suspended,
            Self::Reschedule(_) | Self::MakeDeadLetter(_) | Self::SetRetries(_) => {
                state != JobState::DeadLetter
            }
        }
    }

    /// Returns whether executable jobs stay executable.
    #[cfg(feature = "sqlite")]
    pub(super) fn keeps_the_table(&self) -> bool {
        matches!(self, Self::SetRetries(_) | Self::SetPriority(_))
    }

    /// Returns the reason, cut to the length that a message may have.
    pub(super) fn reason(reason: &str) -> &str {
        let end = reason.floor_char_boundary(MAX_REASON);
        reason.get(..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_refused_with_field_and_remedy() {
        let said = |change: Change| change.validate().unwrap_err().to_string();
        assert!(said(Change::SetRetries(0)).contains("`retries` is 0; give 1 or more"));
        assert!(said(Change::Reschedule(DateTime::<Utc>::MIN_UTC)).contains("`due_at`"));
        assert!(said(Change::MakeDeadLetter("a\0b".to_owned())).contains("`reason`"));
        for good in [
            Change::SetRetries(1),
            Change::Reschedule(Utc::now()),
            Change::Suspend,
        ] {
            good.validate().unwrap();
        }
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(Change::reason("short"), "short");
        let long = "ü".repeat(MAX_REASON);
        assert_eq!(Change::reason(&long).len(), MAX_REASON);
        let odd = format!("a{long}");
        assert_eq!(Change::reason(&odd).len(), MAX_REASON - 1);
    }
}
