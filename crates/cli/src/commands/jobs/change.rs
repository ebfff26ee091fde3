//! The arguments of `jobs change`: which change, with its value.

use chrono::{DateTime, Utc};
use clap::Args;
use jobwire_core::JobState;
use jobwire_core::store::Change;

use crate::commands::date;

/// Exactly one change.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ChangeArgs {
    /// Make timers and waiting retries executable now; they keep their attempts
    #[arg(long)]
    make_executable: bool,
    /// Set the due date of timers and suspended jobs; executable jobs become timers
    #[arg(long, value_name = "DATE", value_parser = date)]
    due: Option<DateTime<Utc>>,
    /// Suspend executable jobs and timers
    #[arg(long)]
    suspend: bool,
    /// Activate suspended jobs that no suspension of a scope covers
    #[arg(long)]
    activate: bool,
    /// Make executable jobs, timers and suspended jobs dead letters, with this message
    #[arg(long, value_name = "REASON")]
    dead_letter: Option<String>,
    /// Set the attempts left of executable jobs, timers and suspended jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    retries: Option<i32>,
    /// Set the priority of jobs of any state; a job whose lane the rules chose gets its lane anew
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    priority: Option<i64>,
}

impl ChangeArgs {
    /// Returns the change.
    pub(super) fn change(&self) -> Change {
        match self {
            Self { due: Some(due), .. } => Change::Reschedule(*due),
            Self {
                dead_letter: Some(reason),
                ..
            } => Change::MakeDeadLetter(reason.clone()),
            Self {
                retries: Some(retries),
                ..
            } => Change::SetRetries(*retries),
            Self {
                priority: Some(priority),
                ..
            } => Change::SetPriority(*priority),
            Self { suspend: true, .. } => Change::Suspend,
            Self { activate: true, .. } => Change::Activate,
            _ => Change::MakeExecutable,
        }
    }
}

/// Returns the states that a change applies to.
pub(super) fn states(change: &Change) -> Vec<JobState> {
    let all = JobState::ALL.iter().copied();
    all.filter(|state| change.applies_to(*state)).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        change: ChangeArgs,
    }

    #[test]
    fn exactly_one_change_is_given() {
        let parsed = |args: &[&str]| {
            let args = std::iter::once("jobs").chain(args.iter().copied());
            Command::try_parse_from(args).map(|command| command.change.change())
        };
        assert_eq!(parsed(&["--suspend"]).unwrap(), Change::Suspend);
        assert_eq!(parsed(&["--activate"]).unwrap(), Change::Activate);
        assert_eq!(
            parsed(&["--make-executable"]).unwrap(),
            Change::MakeExecutable
        );
        assert_eq!(parsed(&["--retries", "7"]).unwrap(), Change::SetRetries(7));
        let priority = parsed(&["--priority", "-7"]).unwrap();
        assert_eq!(priority, Change::SetPriority(-7));
        let due = "2027-01-31T08:00:00Z";
        let reschedule = Change::Reschedule(due.parse().unwrap());
        assert_eq!(parsed(&["--due", due]).unwrap(), reschedule);
        let letter = Change::MakeDeadLetter("wrong".to_owned());
        assert_eq!(parsed(&["--dead-letter", "wrong"]).unwrap(), letter);
        for wrong in [&[][..], &["--suspend", "--activate"], &["--retries", "0"]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
