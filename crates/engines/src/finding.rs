//! The findings of the examination of an engine.

/// The level of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// No problem.
    Fine,
    /// No problem now, but a fact that the operator needs.
    Remark,
    /// A problem that must be repaired.
    Wrong,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The checked part.
    pub about: &'static str,
    /// The level.
    pub level: Level,
    /// The fact or the problem.
    pub found: String,
    /// The remedy.
    pub remedy: Option<String>,
}

impl Finding {
    pub(crate) fn fine(about: &'static str, found: impl Into<String>) -> Self {
        Self {
            about,
            level: Level::Fine,
            found: found.into(),
            remedy: None,
        }
    }

    /// Creates a finding whose text names the remedy.
    pub(crate) fn wrong(about: &'static str, found: String) -> Self {
        Self {
            about,
            level: Level::Wrong,
            found,
            remedy: None,
        }
    }

    pub(crate) fn bad(
        level: Level,
        about: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            about,
            level,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }
}
