//! Remarks about settings that are valid and have no effect.

use super::Settings;

/// A setting that has no effect, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The setting.
    pub setting: &'static str,
    /// The reason why it has no effect.
    pub found: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

/// The settings that name types of handlers. `handlers::apply` applies them.
const OF_TYPES: [&str; 7] = [
    "row_lock_types",
    "type_timeouts",
    "type_heartbeat_timeouts",
    "type_concurrency",
    "type_limits",
    "attempt_types",
    "type_retry_policies",
];

/// Writes remarks to the log, at the start of a command.
pub(crate) fn tell(remarks: &[Remark]) {
    for remark in remarks {
        tracing::warn!(
            remedy = remark.remedy,
            "the setting `{}` {}",
            remark.setting,
            remark.found
        );
    }
}

impl Settings {
    /// Returns whether PostgreSQL wakes the nodes instead of a broker.
    #[must_use]
    pub fn has_wakes(&self) -> bool {
        self.broker_url.scheme() == "none" && self.database_url.scheme() != "sqlite"
    }

    /// Returns the remarks: settings that were given and have no effect.
    #[must_use]
    pub fn remarks(&self) -> Vec<Remark> {
        let fixed = "has no effect, because the number of slots is fixed";
        let set_min = "set `concurrency_min` as well, or leave this out";
        let hints = "has no effect, because the nodes get hints and are not woken";
        let remarks = [
            (
                self.concurrency_min.is_none(),
                "concurrency_idle",
                fixed,
                set_min,
            ),
            (
                self.concurrency_min.is_none(),
                "concurrency_cpu",
                fixed,
                set_min,
            ),
            (
                !self.has_wakes(),
                "claim_interval",
                hints,
                "leave it out, or set `broker_url` to `none` with a database on PostgreSQL",
            ),
            (
                self.has_wakes(),
                "start_order",
                "has no effect on woken nodes, which claim the jobs of a lane in creation order",
                "leave it out, and order the jobs by lanes (`lane_order`); or set `broker_url` to a \
                 broker",
            ),
        ];
        let given = |(idle, setting, found, remedy): (bool, &'static str, _, _)| {
            let given = idle && self.is_given(setting);
            given.then_some(Remark {
                setting,
                found,
                remedy,
            })
        };
        remarks.into_iter().filter_map(given).collect()
    }

    /// Returns the remarks of `jobwire engine run`: settings of types that were given. The engine runs
    /// its jobs by its own settings.
    #[must_use]
    pub fn remarks_of_engine(&self) -> Vec<Remark> {
        let found = "has no effect on the jobs of an engine";
        let remedy = "leave it out, and use the settings of the engine; `jobwire run` takes it";
        self.remarks_of_types(found, remedy)
    }

    /// Returns the remarks of a demonstration with a node in its own process: settings of types that
    /// were given. The handlers of the demonstration have options of their own.
    #[must_use]
    pub fn remarks_of_demo(&self) -> Vec<Remark> {
        let found = "has no effect on a demonstration in one process";
        let remedy = "leave it out, or replay an event log on nodes of their own, which take it \
                      (`--input FILE --nodes N`)";
        self.remarks_of_types(found, remedy)
    }

    fn remarks_of_types(&self, found: &'static str, remedy: &'static str) -> Vec<Remark> {
        let given = OF_TYPES.into_iter().filter(|key| self.is_given(key));
        let remark = |setting| Remark {
            setting,
            found,
            remedy,
        };
        given.map(remark).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::OF_TYPES;
    use crate::settings::TABLE;

    #[test]
    fn each_setting_of_types_is_listed() {
        let keys = TABLE.iter().map(|setting| setting.key);
        let of_types = keys.filter(|key| key.starts_with("type_") || key.ends_with("_types"));
        assert_eq!(of_types.collect::<Vec<_>>(), OF_TYPES);
    }
}
