//! Jobs that no living node can send to the engine: no address has their deployment or category.
//! They wait unlocked, and no attempt is spent.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jobwire_core::StoreError;
use jobwire_core::job::query::UnservedType;
use jobwire_core::job::scope::Services;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use sqlx::{PgPool, Row};

use crate::dialect::Dialect;

/// Maximum number of rows, each for a handler and a need.
const MOST: i64 = 1_000;
/// Maximum number of deployments or categories in a line of the log.
const NAMED: usize = 5;

static WARNINGS: Mutex<Option<LogThrottle>> = Mutex::new(None);

/// Jobs that wait, by their type and by the deployment or category that they need.
#[derive(Debug, Default)]
pub(crate) struct Unserved(Vec<(&'static str, Option<String>, i64)>);

/// Counts the jobs that none of these services takes. Reads every executable job, unless each node
/// takes all.
pub(crate) async fn count(
    dialect: &dyn Dialect,
    pool: &PgPool,
    services: &Services,
) -> Result<Unserved, StoreError> {
    let Some(groups) = services.bound() else {
        return Ok(Unserved::default());
    };
    let rows = sqlx::query(dialect.sweep().unserved)
        .bind(dialect.zone().judged())
        .bind(groups)
        .bind(MOST)
        .fetch_all(pool)
        .await?;
    let mut found = Unserved::default();
    for row in &rows {
        let handler: Option<String> = row.try_get(0)?;
        let job_type = dialect.decoder().type_of(handler.as_deref());
        found.0.push((job_type, row.try_get(1)?, row.try_get(2)?));
    }
    Ok(found)
}

impl Unserved {
    /// Adds jobs of a type that none of the services takes.
    pub(crate) fn add(&mut self, job_type: &'static str, need: Option<String>, jobs: i64) {
        self.0.push((job_type, need, jobs));
    }

    /// Returns the number of jobs.
    pub(crate) fn jobs(&self) -> i64 {
        self.0.iter().map(|(_, _, jobs)| jobs).sum()
    }

    /// Returns the types of the jobs, those with most jobs first.
    pub(crate) fn types(&self, at_most: usize) -> Vec<UnservedType> {
        let mut by_type: BTreeMap<&str, i64> = BTreeMap::new();
        for (job_type, _, jobs) in &self.0 {
            *by_type.entry(job_type).or_default() += jobs;
        }
        let mut types: Vec<(&str, i64)> = by_type.into_iter().collect();
        types.sort_by_key(|(_, jobs)| std::cmp::Reverse(*jobs));
        let types = types.into_iter().take(at_most);
        types
            .map(|(job_type, jobs)| UnservedType::new(job_type.to_owned(), jobs))
            .collect()
    }

    /// Returns the deployments or categories of most jobs, in words.
    pub(crate) fn needs(&self) -> String {
        let mut by_need: BTreeMap<&str, i64> = BTreeMap::new();
        for (_, need, jobs) in &self.0 {
            *by_need
                .entry(need.as_deref().unwrap_or_default())
                .or_default() += jobs;
        }
        let mut needs: Vec<(&str, i64)> = by_need.into_iter().collect();
        needs.sort_by_key(|(_, jobs)| std::cmp::Reverse(*jobs));
        let named = needs.iter().take(NAMED);
        let mut text: Vec<String> = named
            .map(|(need, jobs)| format!("`{}` ({jobs})", need.escape_debug()))
            .collect();
        if needs.len() > NAMED {
            text.push("…".to_owned());
        }
        text.join(", ")
    }

    /// Logs these jobs, at a limited rate.
    pub(crate) fn warn(&self) {
        if self.0.is_empty() {
            return;
        }
        let mut throttle = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(more) = throttle.get_or_insert_default().now() {
            tracing::warn!(
                jobs = self.jobs(),
                needs = self.needs(),
                more,
                "no address of the engine has the deployment or the category of these jobs; they wait, and no attempt is spent"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_told_by_type_and_by_need() {
        let need = |name: &str| Some(name.to_owned());
        let found = Unserved(vec![
            ("timer-transition", need("d1"), 2),
            ("async-continuation", need("d1"), 5),
            ("async-continuation", need("d2"), 1),
        ]);
        assert_eq!(found.jobs(), 8);
        assert_eq!(found.needs(), "`d1` (7), `d2` (1)");
        let types = found.types(1);
        assert_eq!(
            (&*types[0].job_type, types[0].jobs),
            ("async-continuation", 6)
        );
        let many = (0..7).map(|n| ("other", need(&format!("d{n}")), 1));
        assert!(Unserved(many.collect()).needs().ends_with("…"));
    }
}
