//! The error for a field that no job may have.

use crate::job::calendar::CalendarFault;
use crate::job::repeat::BadRepeat;

/// The error for an invalid field, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` {problem}; {remedy}")]
pub struct InvalidJob {
    /// The field's name in JSON and SQL.
    pub field: &'static str,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: &'static str,
}

impl InvalidJob {
    pub(crate) fn new(
        field: &'static str,
        problem: impl Into<String>,
        remedy: &'static str,
    ) -> Self {
        Self {
            field,
            problem: problem.into(),
            remedy,
        }
    }

    /// Creates the error for a repeat that can't be read, or gives no date.
    pub(crate) fn repeat(error: &BadRepeat) -> Self {
        match error {
            BadRepeat::Fault(fault) => Self::fault("repeat", fault, fault.remedy()),
            BadRepeat::Never(_) => Self::new(
                "repeat",
                format!("can't be computed: {error}"),
                "choose dates in the future, and before the end if there is one",
            ),
            _ => {
                let (problem, remedy) = error.parts();
                let remedy = remedy.unwrap_or("use for example `R3/PT10M`");
                Self::new("repeat", problem, remedy)
            }
        }
    }

    /// Creates the error for a field whose date a calendar does not give.
    pub(crate) fn fault(field: &'static str, fault: &CalendarFault, remedy: &'static str) -> Self {
        Self::new(field, format!("can't be computed: {fault}"), remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::repeat::Repeat;

    #[test]
    fn the_field_of_a_job_has_one_remedy() {
        for (text, said) in [
            (
                "0 25 * * *",
                "field `repeat` `0 25 * * *` is not a cron expression: Number out of bounds; use for \
                 example `0 2 * * *`, at 2 o'clock each day: minute (0 to 59), hour (0 to 23), day, month, \
                 day of the week",
            ),
            (
                "R/P1D[Europe/Atlantis]",
                "field `repeat` `Europe/Atlantis` is not a time zone; write a name such as Europe/Berlin",
            ),
            (
                "R/P1D[catch-up=twice]",
                "field `repeat` `twice` is not a policy for missed occurrences; write once, all or skip",
            ),
            (
                "R/P1D[UTC][UTC]",
                "field `repeat` the suffix `[UTC]` is unknown or occurs twice; write a time zone, \
                 catch-up=…, calendar=… or closed=…",
            ),
            (
                "R/P1D[calendar=a][closed=no]",
                "field `repeat` `no` is not a rule for dates outside of working time; write closed=move or \
                 closed=skip, beside a calendar",
            ),
        ] {
            let error = Repeat::parse(text).unwrap_err();
            assert_eq!(InvalidJob::repeat(&error).to_string(), said);
        }
    }
}
