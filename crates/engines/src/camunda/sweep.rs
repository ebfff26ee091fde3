//! Statements of the leader: jobs whose hint was lost, and the numbers of jobs.

use super::sql::{by_age, due, in_groups, local_now, runnable, unlocked};
use crate::statements::Sweep;
use crate::zone::moment_of;

/// The statements.
pub(super) const SWEEP: Sweep = Sweep {
    orphans: ORPHANS,
    backlog: BACKLOG,
    unserved: UNSERVED,
};

/// Selects orphans. Reads at most 20,000 rows, in the order of the key: `read_to` is the last one,
/// if there may be more. A job is ready from the later of its write and its due date. The xmin of
/// the row shows the write: the transaction that wrote it must have ended before the horizon. A
/// mark is a new version of the row without a change, so that the row is not suspected again before
/// the next horizon.
const ORPHANS: &str = concat!(
    "
WITH lost AS MATERIALIZED (
    SELECT j.id_, j.process_instance_id_, j.handler_type_ FROM (
        SELECT j.id_, j.process_instance_id_, j.handler_type_, j.tenant_id_, j.deployment_id_, j.retries_, j.suspension_state_, j.lock_exp_time_, j.duedate_,
            j.create_time_, j.sequence_counter_, j.xmin::text::bigint AS written_by
        FROM act_ru_job j
        WHERE j.id_ > coalesce($2, '') ORDER BY j.id_ LIMIT 20000
    ) j
    WHERE ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " AND (j.duedate_ IS NULL OR j.duedate_ <= $4::timestamptz AT TIME ZONE $1)
      AND ($3::bigint IS NULL OR ($3 - j.written_by) & 4294967295 BETWEEN 1 AND 2147483648
          OR j.create_time_ <= ($4 - interval '10 minutes') AT TIME ZONE $1)
      AND j.id_ <> ALL($5)
      AND ",
    in_groups!("j", "$8"),
    "
      AND NOT EXISTS (SELECT FROM act_ru_execution e WHERE e.id_ = j.process_instance_id_ AND e.suspension_state_ = 2)
      AND NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = j.process_instance_id_
          AND (s.lock_exp_time_ IS NOT NULL OR (",
    runnable!("s"),
    " AND ",
    due!("s"),
    " AND (",
    by_age!("s"),
    ") < (",
    by_age!("j"),
    "))))
    ORDER BY j.id_ LIMIT $6
), free AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j WHERE $7 AND j.id_ IN (SELECT id_ FROM lost) AND ",
    unlocked!("j"),
    "
    ORDER BY j.id_ FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
    UPDATE act_ru_job j SET lock_owner_ = NULL FROM free WHERE j.id_ = free.id_
)
SELECT p.read_to, lost.*, NOT $7 OR EXISTS (SELECT FROM free WHERE free.id_ = lost.id_) AS is_free
FROM (SELECT (SELECT id_ FROM act_ru_job WHERE id_ > coalesce($2, '') ORDER BY id_ OFFSET 19999 LIMIT 1) AS read_to) p
    LEFT JOIN lost ON true
ORDER BY lost.id_"
);

const UNSERVED: &str = concat!(
    "
SELECT handler_type_, deployment_id_ AS needs, count(*) FROM (
    SELECT j.handler_type_, j.deployment_id_ FROM act_ru_job j
    WHERE ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " AND (",
    due!("j"),
    ") AND NOT ",
    in_groups!("j", "$2"),
    "
    LIMIT 100000) j
GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT $3"
);

const BACKLOG: &str = concat!(
    "
SELECT (SELECT count(*) FROM (SELECT lock_exp_time_ FROM act_ru_job LIMIT 100000) j WHERE j.lock_exp_time_ >= ",
    local_now!(),
    "),
    (SELECT count(*) FROM (SELECT FROM act_ru_job j WHERE ",
    runnable!("j"),
    " AND ",
    due!("j"),
    " LIMIT $2) c),
    (SELECT count(*) FROM (SELECT FROM act_ru_job j WHERE ",
    runnable!("j"),
    " AND NOT ",
    due!("j"),
    " LIMIT $2) c),
    (SELECT count(*) FROM (SELECT FROM act_ru_job j WHERE j.retries_ <= 0 LIMIT $2) c),
    (SELECT min(",
    moment_of!("coalesce(c.duedate_, c.create_time_)"),
    ") FROM (SELECT duedate_, create_time_ FROM act_ru_job j WHERE ",
    runnable!("j"),
    " AND ",
    due!("j"),
    " LIMIT $2) c),
    (SELECT min(duedate_) AT TIME ZONE $1 FROM act_ru_job j WHERE j.duedate_ < '9999-01-01' AND ",
    runnable!("j"),
    " AND NOT ",
    due!("j"),
    "),
    NULL::bigint"
);
