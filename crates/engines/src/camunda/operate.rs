//! Operators' queries. The state of a job follows from the columns of its row.

use super::sql::{due, job_columns};
use crate::statements::Queries;
use crate::zone::moment_of;

/// The jobs with their states, and the conditions of a filter. `$1`: the zone.
macro_rules! matching {
    () => {
        concat!(
            "
FROM (SELECT j.*, CASE WHEN coalesce(retries_, 0) <= 0 THEN 'dead-letter' WHEN suspension_state_ = 2 THEN 'suspended' WHEN ",
            due!("j"),
            " THEN 'executable' ELSE 'timer' END AS state FROM act_ru_job j) j
WHERE ($2::text IS NULL OR j.id_ = $2) AND j.state = ANY($3)
  AND ($4::text IS NULL OR CASE WHEN $4 = $14 THEN j.handler_type_ <> ALL($15) ELSE j.handler_type_ = $4 END)
  AND ($5::text IS NULL OR j.process_instance_id_ = $5)
  AND ($6::text IS NULL OR j.process_def_id_ = $6) AND ($7::text IS NULL OR j.failed_act_id_ = $7)
  AND ($8::text IS NULL OR j.tenant_id_ = $8)
  AND ($9::boolean IS NULL OR (j.lock_exp_time_ IS NOT NULL) = $9)
  AND ($10::boolean IS NULL OR (j.exception_msg_ IS NOT NULL OR j.exception_stack_id_ IS NOT NULL) = $10)
  AND ($11::timestamptz IS NULL OR j.duedate_ < $11 AT TIME ZONE $1)
  AND ($12::text IS NULL OR $12 = $13)"
        )
    };
}

/// The statements.
pub(super) const QUERIES: Queries = Queries {
    find: FIND,
    count: COUNT,
    stack: STACK,
};

const FIND: &str = concat!(
    "SELECT j.state, j.lock_owner_, ",
    moment_of!("j.lock_exp_time_"),
    " AS locked_until, ",
    job_columns!("j"),
    matching!(),
    " ORDER BY j.create_time_, j.id_ OFFSET $16 LIMIT $17"
);
const COUNT: &str = concat!("SELECT count(*)", matching!());

/// Selects the stack of a job's last failure.
const STACK: &str = "
SELECT convert_from(b.bytes_, 'UTF8') FROM act_ge_bytearray b
WHERE b.id_ = (SELECT exception_stack_id_ FROM act_ru_job WHERE id_ = $1)";
