//! The gauges of one node.
//!
//! Counters and histograms of several nodes in one process add up. Gauges do not: each write of a
//! node would replace the value of another. So each node that has a
//! [`database`](crate::NodeOptions::database) name writes its own gauges, with the label
//! `database`.

use metrics::{Gauge, Label, gauge};

/// Creates the gauges of one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gauges {
    database: Option<String>,
}

impl Gauges {
    /// Returns the gauges of a node of this database, if it has a name.
    pub(crate) fn new(database: Option<String>) -> Self {
        Self { database }
    }

    /// Returns a gauge of the node.
    pub(crate) fn of_node(&self, name: &'static str) -> Gauge {
        gauge!(name, self.labels())
    }

    /// Returns a gauge of a lane of the node.
    pub(crate) fn of_lane(&self, name: &'static str, lane: String) -> Gauge {
        let mut labels = vec![Label::new("lane", lane)];
        labels.extend(self.labels());
        gauge!(name, labels)
    }

    /// Returns a gauge of a type of job of the node.
    pub(crate) fn of_type(&self, name: &'static str, job_type: String) -> Gauge {
        let mut labels = vec![Label::new("type", job_type)];
        labels.extend(self.labels());
        gauge!(name, labels)
    }

    /// Returns a gauge of a kind of scope of the node.
    pub(crate) fn of_scope(&self, name: &'static str, scope: &'static str) -> Gauge {
        let mut labels = vec![Label::new("scope", scope)];
        labels.extend(self.labels());
        gauge!(name, labels)
    }

    fn labels(&self) -> Vec<Label> {
        let database = self.database.iter();
        database
            .map(|database| Label::new("database", database.clone()))
            .collect()
    }
}
