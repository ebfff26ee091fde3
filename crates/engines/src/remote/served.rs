//! The engines that the endpoint serves.

use crate::act::Family;
use crate::camunda;

/// An engine behind an endpoint.
#[derive(Clone, Copy)]
pub(super) enum Served {
    /// An engine of Activiti's family.
    Act(&'static Family),
    /// Camunda 7, or an engine with its schema.
    Camunda,
}

impl Served {
    /// Returns its name in the contract.
    pub(super) fn engine(self) -> &'static str {
        match self {
            Self::Act(family) => family.engine,
            Self::Camunda => camunda::ENGINE,
        }
    }

    /// Returns its name for operators.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Act(family) => family.title,
            Self::Camunda => camunda::TITLE,
        }
    }

    /// Returns the types of its jobs.
    pub(super) fn types(self) -> &'static [&'static str] {
        match self {
            Self::Act(family) => family.types,
            Self::Camunda => &camunda::HANDLER_TYPES,
        }
    }

    /// Returns the setting that turns off its own executor.
    pub(super) fn hand_over(self) -> &'static str {
        match self {
            Self::Act(family) => family.hand_over,
            Self::Camunda => camunda::HAND_OVER,
        }
    }

    /// Returns the problem of a schema version that is not known.
    pub(super) fn unknown_version(self, version: Option<&str>) -> Option<String> {
        match self {
            Self::Act(family) => family.unknown_version(version),
            Self::Camunda => camunda::probe::unknown_version(version),
        }
    }

    /// Returns whether a job becomes executable in its row. Then the engine's hook, which sees new
    /// rows, publishes no hint for a job that an operator retries.
    pub(super) const fn keeps_rows(self) -> bool {
        matches!(self, Self::Camunda)
    }
}
