//! Compares the configured zone with the engine's rows: at the start of a node, and in its cycles
//! before it clears a lock.

use super::EngineStore;

impl EngineStore {
    /// Reads rows of the engine, and reports a wrong zone. A read that fails changes nothing.
    pub(super) async fn check_zone(&self) {
        let (dialect, rest) = (self.dialect(), &self.0.connections.rest);
        let read = self.run("zone", rest, || {
            dialect.zone().read(dialect.stamps(), &rest.inner)
        });
        if let Err(error) = read.await {
            tracing::debug!(%error, "the zone of the engine could not be checked");
        }
        let problem = dialect.zone().problem();
        self.0.parts.meter.zone_wrong(problem.is_some());
        if let Some(problem) = problem {
            tracing::error!(problem, "the zone of the engine is wrong");
        }
    }
}
