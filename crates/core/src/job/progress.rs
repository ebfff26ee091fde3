//! The progress of a running job.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::text::storable;

/// The maximum size of the text of a progress, in bytes. A longer text is cut.
pub const MAX_PROGRESS_BYTES: usize = 1024;
/// The maximum size of a checkpoint, in bytes of JSON. Store larger data in a table of your own, and
/// its key in the checkpoint.
pub const MAX_CHECKPOINT_BYTES: usize = 1 << 16;

/// How far a running job has come: what is done, of which total, and a short text.
///
/// ```
/// use jobwire_core::Progress;
///
/// assert_eq!(Progress::of(30, 120).text("rows").percentage(), Some(25));
/// assert_eq!(Progress::percent(250).percentage(), Some(100));
/// assert_eq!(Progress::done(30).percentage(), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// The steps that are done.
    pub done: u64,
    /// The number of all steps, if it is known.
    pub total: Option<u64>,
    /// A text for people.
    pub text: Option<String>,
}

impl Progress {
    /// Creates a progress of unknown total.
    #[must_use]
    pub fn done(done: u64) -> Self {
        Self {
            done,
            total: None,
            text: None,
        }
    }

    /// Creates a progress of `done` steps of `total`.
    #[must_use]
    pub fn of(done: u64, total: u64) -> Self {
        Self {
            total: Some(total),
            ..Self::done(done)
        }
    }

    /// Creates a progress in percent, at most 100.
    #[must_use]
    pub fn percent(percent: u8) -> Self {
        Self::of(percent.min(100).into(), 100)
    }

    /// Adds a text for people, cut to [`MAX_PROGRESS_BYTES`].
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(storable(text.into(), MAX_PROGRESS_BYTES));
        self
    }

    /// Returns the progress in percent, at most 100; `None` if the total is unknown.
    #[must_use]
    pub fn percentage(&self) -> Option<u8> {
        let total = self.total?;
        if self.done >= total {
            return Some(100);
        }
        let percent = u128::from(self.done) * 100 / u128::from(total);
        Some(u8::try_from(percent).unwrap_or(100))
    }
}

/// In percent.
impl From<u8> for Progress {
    fn from(percent: u8) -> Self {
        Self::percent(percent)
    }
}

/// The last progress that a job has reported and that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProgressView {
    /// The progress.
    #[serde(flatten)]
    pub progress: Progress,
    /// The time at which it was written.
    pub reported_at: DateTime<Utc>,
}

impl ProgressView {
    /// Reads the columns of a progress. Another program may have written any values.
    pub(crate) fn read(
        done: Option<i64>,
        total: Option<i64>,
        text: Option<String>,
        reported_at: Option<DateTime<Utc>>,
    ) -> Option<Self> {
        Some(Self {
            progress: Progress {
                done: u64::try_from(done?).unwrap_or_default(),
                total: total.map(|total| u64::try_from(total).unwrap_or_default()),
                text,
            },
            reported_at: reported_at?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_between_0_and_100() {
        assert_eq!(Progress::of(0, 0).percentage(), Some(100));
        assert_eq!(Progress::of(1, 3).percentage(), Some(33));
        assert_eq!(Progress::of(u64::MAX - 1, u64::MAX).percentage(), Some(99));
        assert_eq!(Progress::of(5, 3).percentage(), Some(100));
        assert_eq!(Progress::from(42), Progress::of(42, 100));
    }

    #[test]
    fn a_text_is_cut_at_a_character_and_has_no_nul() {
        let text = Progress::done(1).text("ä".repeat(1_000)).text;
        assert_eq!(text.map(|text| text.len()), Some(MAX_PROGRESS_BYTES));
        let text = Progress::done(1).text("a\0b").text;
        assert_eq!(text.as_deref(), Some("a\u{fffd}b"));
    }
}
