//! Judges the limits of a run: reads the runs of limited jobs from the history.

use super::workload::Kind;
use crate::history::permits::{Bound, LimitedRun, judge};
use crate::history::{Calendar, Micros, Report};
use jobwire_core::JobId;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use std::time::Duration;

/// The runs of a type. A run has an end if its handler recorded one and its lease was not taken off its
/// node.
const RUNS: &str = "
SELECT s.job, c.key, (extract(epoch FROM s.at) * 1000000)::bigint, s.uptime, e.uptime
FROM chaos.history s
JOIN (SELECT DISTINCT ON (job) job, type, payload ->> 'key' AS key FROM chaos.history
      WHERE seq IS NOT NULL AND type = $1 ORDER BY job, number) c ON c.job = s.job
LEFT JOIN chaos.history e ON e.run = s.run AND e.what = 'end' AND NOT EXISTS (
    SELECT FROM chaos.history t
    WHERE t.job = s.job AND t.what = 'job_lease update' AND t.owner IS NULL AND t.old_fence = s.fence)
WHERE s.what = 'start' AND s.uptime IS NOT NULL";

/// Judges all limits of a run of the suite.
///
/// # Errors
/// If the database fails.
pub async fn check(
    url: &str,
    calendar: &Calendar,
    lease: Duration,
    report: &mut Report,
) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(url).await?;
    for kind in Kind::ALL {
        let Some(bound) = kind.bound() else { continue };
        let rows = sqlx::query(RUNS)
            .bind(kind.job_type())
            .fetch_all(&mut connection)
            .await?;
        let mut runs = Vec::with_capacity(rows.len());
        for row in rows {
            runs.push(LimitedRun {
                job: JobId::from_uuid(row.try_get(0)?),
                key: row.try_get::<Option<String>, _>(1)?.unwrap_or_default(),
                at: row.try_get(2)?,
                start: row.try_get(3)?,
                end: row.try_get(4)?,
            });
        }
        let cool_down = match bound {
            Bound::Running(_) => 0,
            Bound::Rate { millis, .. } => millis * 1_000,
        };
        let lease = Micros::try_from(lease.as_micros()).unwrap_or(Micros::MAX / 4);
        judge(bound, runs, calendar, 2 * lease + cool_down, report);
    }
    Ok(())
}
