//! The dry run of a sweep.

use super::sql::{in_groups, local_now, of_processes, unlocked};
use crate::activity::other_transactions;
use crate::sweepable::is_tapped;
use crate::zone::moment_of;

/// Counts the jobs by what the leader would do with them, in the order of the fields of `Sweepable`.
/// `$1`: the zone, `$2`: patience, `$3`: the engine, `$4`: the groups of nodes. The conditions are those of the
/// [rescue](super::rescue), the [look](super::look) and the [sweep](super::sweep).
///
/// Jobs of other scopes count as unserved, and so do jobs that no node takes.
pub(super) const SWEEPABLE: &str = concat!(
    "
WITH last AS MATERIALIZED (
    SELECT seen, pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest
    FROM jobwire_engine.leader WHERE engine = $3 AND seen IS NOT NULL AND NOT ",
    is_tapped!(),
    "
), looked AS (
    SELECT CASE
        WHEN NOT ",
    of_processes!("j"),
    " THEN 'unserved'
        WHEN j.lock_exp_time_ < ",
    local_now!(),
    " - CASE WHEN starts_with(j.lock_owner_, 'jobwire:') THEN interval '0' ELSE interval '1 minute' END
            AND (j.lock_exp_time_ < ",
    local_now!(),
    " - $2 OR NOT EXISTS (SELECT FROM ",
    other_transactions!(),
    " AND a.xact_start < ",
    moment_of!("j.lock_exp_time_"),
    ")) THEN 'expired'
        WHEN NOT ",
    unlocked!("j"),
    " THEN 'running'
        WHEN e.suspension_state_ = 2 THEN 'suspended'
        WHEN NOT ",
    in_groups!("j", "$4"),
    " THEN 'unserved'
        WHEN e.lock_time_ IS NOT NULL OR {e.lock_owner_} IS NOT NULL OR EXISTS (
            SELECT FROM act_ru_job s WHERE s.process_instance_id_ = j.process_instance_id_
              AND (s.lock_exp_time_ IS NOT NULL OR (({by_age s}) < ({by_age j}) AND ",
    of_processes!("s"),
    " AND ",
    in_groups!("s", "$4"),
    "))) THEN 'instance-held'
        WHEN EXISTS (SELECT FROM last WHERE NOT pg_visible_in_snapshot(
            (last.newest - ((last.newest - j.xmin::text::bigint) & 4294967295))::text::xid8, last.seen::pg_snapshot)) THEN 'unhinted'
        ELSE 'ready' END AS class
    FROM act_ru_job j LEFT JOIN act_ru_execution e ON e.id_ = j.process_instance_id_
)
SELECT clock_timestamp(),
    count(*) FILTER (WHERE class = 'expired'), count(*) FILTER (WHERE class = 'unhinted'),
    (SELECT count(*) FROM act_ru_execution e
        WHERE e.id_ IN (SELECT j.process_instance_id_ FROM act_ru_job j WHERE ",
    unlocked!("j"),
    " UNION SELECT t.process_instance_id_ FROM act_ru_timer_job t WHERE ",
    unlocked!("t"),
    ") AND (e.lock_time_ < ",
    local_now!(),
    " OR (e.lock_time_ IS NULL AND {e.lock_owner_} IS NOT NULL))
          AND NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = e.id_ AND s.lock_exp_time_ >= ",
    local_now!(),
    ")
          AND (e.lock_time_ < ",
    local_now!(),
    " - $2 OR NOT EXISTS (SELECT FROM ",
    other_transactions!(),
    " AND a.xact_start < ",
    moment_of!("e.lock_time_"),
    "))),
    count(*) FILTER (WHERE class = 'ready'), count(*) FILTER (WHERE class = 'instance-held'),
    count(*) FILTER (WHERE class = 'suspended') + (SELECT count(*) FROM act_ru_suspended_job),
    count(*) FILTER (WHERE class = 'unserved'), count(*) FILTER (WHERE class = 'running')
FROM looked"
);
