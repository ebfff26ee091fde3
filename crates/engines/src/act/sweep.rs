//! Statements of the leader: jobs whose hint was lost, and the numbers of jobs.

use super::sql::{in_groups, local_now, of_processes, unlocked};
use crate::zone::moment_of;

/// Selects orphans. Reads at most 20,000 rows, in the order of the key: `read_to` is the last one,
/// if there may be more. A row has no time at which it became ready, but its xmin shows it: the
/// transaction that inserted or released the row must have ended before the horizon. A mark is a
/// new version of the row without a change, so that the row is not suspected again before the next
/// horizon. A job waits for the elder ones of its instance, but for none that no node takes.
pub(super) const ORPHANS: &str = concat!(
    "
WITH lost AS MATERIALIZED (
    SELECT j.id_, j.process_instance_id_, j.handler_type_ FROM (
        SELECT j.id_, j.process_instance_id_, j.handler_type_, j.tenant_id_, {j.category_} AS category_, {j.scope_type_} AS scope_type_, j.lock_exp_time_, j.lock_owner_,
            {j.create_time_} AS create_time_,
            j.xmin::text::bigint AS written_by
        FROM act_ru_job j
        WHERE j.id_ > coalesce($2, '') ORDER BY j.id_ LIMIT 20000
    ) j
    WHERE ",
    unlocked!("j"),
    " AND (",
    of_processes!("j"),
    ")
      AND ($3::bigint IS NULL OR ($3 - j.written_by) & 4294967295 BETWEEN 1 AND 2147483648
          OR j.create_time_ <= ($4::timestamptz - interval '10 minutes') AT TIME ZONE $1)
      AND j.id_ <> ALL($5)
      AND ",
    in_groups!("j", "$8"),
    "
      AND NOT EXISTS (SELECT FROM act_ru_execution e WHERE e.id_ = j.process_instance_id_ AND e.lock_time_ IS NOT NULL)
      AND NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = j.process_instance_id_
          AND (s.lock_exp_time_ IS NOT NULL OR (({by_age s}) < ({by_age j}) AND ",
    of_processes!("s"),
    " AND ",
    in_groups!("s", "$8"),
    ")))
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

/// The zone `$1` is unused here.
pub(super) const UNSERVED: &str = concat!(
    "
SELECT handler_type_, needs, count(*) FROM (
    SELECT j.handler_type_, {j.category_} AS needs FROM act_ru_job j
    WHERE $1::text IS NOT NULL AND ",
    unlocked!("j"),
    " AND (",
    of_processes!("j"),
    ") AND NOT ",
    in_groups!("j", "$2"),
    "
    LIMIT 100000) j
GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT $3"
);

pub(super) const BACKLOG: &str = concat!(
    "
SELECT (SELECT count(*) FROM (SELECT lock_exp_time_ FROM act_ru_job LIMIT 100000) j WHERE j.lock_exp_time_ >= ",
    local_now!(),
    "),
    (SELECT count(*) FROM (SELECT FROM act_ru_job j WHERE ",
    of_processes!("j"),
    " LIMIT $2) c),
    (SELECT count(*) FROM (SELECT FROM act_ru_timer_job LIMIT $2) c),
    (SELECT count(*) FROM (SELECT FROM act_ru_deadletter_job LIMIT $2) c),
    (SELECT min(",
    moment_of!("c.create_time_"),
    ") FROM (SELECT {create_time_} FROM act_ru_job LIMIT $2) c),
    (SELECT greatest(t.duedate_, '0001-01-02') AT TIME ZONE $1 FROM act_ru_timer_job t WHERE t.duedate_ < '9999-01-01' AND ",
    unlocked!("t"),
    " AND (",
    of_processes!("t"),
    ") ORDER BY t.duedate_ LIMIT 1),
    (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass('act_ru_job'))"
);
