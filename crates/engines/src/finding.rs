//! What the examination of an engine finds.

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Fine,
    /// Works, but the operator should know about it.
    Remark,
    /// Must be repaired.
    Wrong,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The checked part.
    pub about: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it.
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

    /// A finding whose text names the remedy.
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
