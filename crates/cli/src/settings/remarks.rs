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
}
