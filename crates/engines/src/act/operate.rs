//! Operators' queries over all tables of jobs.

use super::sql::job_columns;
use crate::zone::moment_of;

macro_rules! table {
    ($state:literal, $table:literal, $retries:literal, $owner:literal, $until:literal) => {
        concat!(
            "SELECT '", $state, "' AS state, id_, rev_, type_, handler_type_, process_instance_id_, execution_id_, proc_def_id_, {element_id_}, tenant_id_,
        {category_}, ", $retries, " AS retries_, exception_msg_, exception_stack_id_, \
                                   {create_time_}, duedate_, ",
            $owner, " AS lock_owner_, ", $until, " AS lock_exp_time_, {scope_type_} FROM ", $table
        )
    };
}

/// The jobs of all tables with their states, and the conditions of a filter. `$1`: the zone.
macro_rules! matching {
    () => {
        concat!(
            "
FROM (", table!("executable", "act_ru_job", "retries_", "lock_owner_", "lock_exp_time_"),
            "
    UNION ALL ", table!("timer", "act_ru_timer_job", "retries_", "lock_owner_", "lock_exp_time_"),
            "
    UNION ALL ", table!("suspended", "act_ru_suspended_job", "retries_", "NULL::text", "NULL::timestamp"),
            "
    UNION ALL ", table!("dead-letter", "act_ru_deadletter_job", "0", "NULL::text", "NULL::timestamp"),
            ") j
WHERE (j.scope_type_ IS NULL OR j.scope_type_ = 'bpmn')
  AND ($2::text IS NULL OR j.id_ = $2) AND j.state = ANY($3)
  AND ($4::text IS NULL OR CASE WHEN $4 = $14 THEN j.handler_type_ <> ALL($15) ELSE j.handler_type_ = $4 END)
  AND ($5::text IS NULL OR j.process_instance_id_ = $5)
  AND ($6::text IS NULL OR j.proc_def_id_ = $6) AND ($7::text IS NULL OR j.element_id_ = $7)
  AND ($8::text IS NULL OR j.tenant_id_ = $8)
  AND ($9::boolean IS NULL OR (j.lock_exp_time_ IS NOT NULL) = $9)
  AND ($10::boolean IS NULL OR (j.exception_msg_ IS NOT NULL OR j.exception_stack_id_ IS NOT NULL) = $10)
  AND ($11::timestamptz IS NULL OR j.duedate_ < $11 AT TIME ZONE $1)
  AND ($12::text IS NULL OR $12 = $13)"
        )
    };
}

pub(super) const FIND: &str = concat!(
    "SELECT j.state, j.lock_owner_, ",
    moment_of!("j.lock_exp_time_"),
    " AS locked_until, ",
    job_columns!("j"),
    matching!(),
    " ORDER BY j.create_time_, j.id_ OFFSET $16 LIMIT $17"
);
pub(super) const COUNT: &str = concat!("SELECT count(*)", matching!());

/// Selects the stack of a job's last failure.
pub(super) const STACK: &str = "
SELECT convert_from(b.bytes_, 'UTF8') FROM act_ge_bytearray b WHERE b.id_ IN (
    SELECT exception_stack_id_ FROM act_ru_job WHERE id_ = $1 UNION ALL SELECT exception_stack_id_ FROM act_ru_timer_job WHERE id_ = $1
    UNION ALL SELECT exception_stack_id_ FROM act_ru_suspended_job WHERE id_ = $1
    UNION ALL SELECT exception_stack_id_ FROM act_ru_deadletter_job WHERE id_ = $1) LIMIT 1";
