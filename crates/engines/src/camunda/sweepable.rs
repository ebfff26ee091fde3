//! The dry run of a sweep over Camunda's table.

use super::sql::{by_age, due, in_groups, local_now, runnable, unlocked};
use crate::activity::other_transactions;
use crate::sweepable::is_tapped;
use crate::zone::moment_of;

/// Counts the jobs by what the leader would do with them, in the order of the fields of `Sweepable`.
/// `$1`: the zone, `$2`: patience, `$3`: the engine, `$4`: the groups of nodes. The conditions are those of the
/// [rescue](super::rescue), the [look](super::look) and the [sweep](super::sweep). Timers that are not
/// due and jobs without attempts count nowhere, and an instance has no lock that could be left.
pub(super) const SWEEPABLE: &str = concat!(
    "
WITH last AS MATERIALIZED (
    SELECT seen, pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest
    FROM jobwire_engine.leader WHERE engine = $3 AND seen IS NOT NULL AND NOT ",
    is_tapped!(),
    "
), looked AS (
    SELECT CASE
        WHEN j.lock_exp_time_ < ",
    local_now!(),
    " - CASE WHEN starts_with(j.lock_owner_, 'jobwire:') THEN interval '0' ELSE interval '1 minute' END
            AND (j.lock_exp_time_ < ",
    local_now!(),
    " - $2 OR NOT EXISTS (SELECT FROM ",
    other_transactions!(),
    " AND a.xact_start < ",
    moment_of!("j.lock_exp_time_"),
    ")
                AND NOT EXISTS (SELECT FROM jobwire_engine.node n
                    WHERE n.id::text = split_part(j.lock_owner_, ':', 2) AND n.seen_at > clock_timestamp() - interval '90 seconds'))
            THEN 'expired'
        WHEN NOT ",
    unlocked!("j"),
    " THEN 'running'
        WHEN coalesce(j.retries_, 0) <= 0 THEN 'dead-letter'
        WHEN j.suspension_state_ = 2 OR e.suspension_state_ = 2 THEN 'suspended'
        WHEN NOT ",
    due!("j"),
    " THEN 'timer'
        WHEN NOT ",
    in_groups!("j", "$4"),
    " THEN 'unserved'
        WHEN EXISTS (
            SELECT FROM act_ru_job s WHERE s.process_instance_id_ = j.process_instance_id_
              AND (s.lock_exp_time_ IS NOT NULL OR (",
    runnable!("s"),
    " AND ",
    due!("s"),
    " AND (",
    by_age!("s"),
    ") < (",
    by_age!("j"),
    ")))) THEN 'instance-held'
        WHEN EXISTS (SELECT FROM last WHERE NOT pg_visible_in_snapshot(
            (last.newest - ((last.newest - j.xmin::text::bigint) & 4294967295))::text::xid8, last.seen::pg_snapshot)) THEN 'unhinted'
        ELSE 'ready' END AS class
    FROM act_ru_job j LEFT JOIN act_ru_execution e ON e.id_ = j.process_instance_id_
)
SELECT clock_timestamp(),
    count(*) FILTER (WHERE class = 'expired'), count(*) FILTER (WHERE class = 'unhinted'), 0::bigint,
    count(*) FILTER (WHERE class = 'ready'), count(*) FILTER (WHERE class = 'instance-held'),
    count(*) FILTER (WHERE class = 'suspended'), count(*) FILTER (WHERE class = 'unserved'), count(*) FILTER (WHERE class = 'running')
FROM looked"
);
