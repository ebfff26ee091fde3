//! The leader's search for [jobs of other scopes](crate::other_scopes) in the tables.

use super::EngineStore;

impl EngineStore {
    /// Searches for them if the pause is over.
    pub(super) async fn tell_foreign(&self) {
        let searches = &self.0.other_scopes;
        let Some(began) = searches.begin() else {
            return;
        };
        let (dialect, rest) = (self.dialect(), &self.0.connections.rest);
        let found = self.run("foreign", rest, || dialect.foreign(&rest.inner));
        match found.await {
            Ok(found) => searches.end(began, &found, &self.0.parts.meter),
            Err(error) => {
                tracing::debug!(%error, "the search for jobs of other scopes failed");
            }
        }
    }
}
