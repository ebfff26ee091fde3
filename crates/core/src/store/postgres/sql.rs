//! The pieces that several statements share, as literals: each statement stays one constant text.

/// Every column of the job tables, in their order, for moves from one table to another. Explicit, so
/// that columns which a later version adds take their defaults (protocol rule 32).
macro_rules! moved_columns {
    () => {
        "id, seq, revision, kind, type, payload, process_instance, execution, process_definition, element, tenant, \
         category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until, \
         correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, ready_at, hints"
    };
}

/// The strikes after the holder of a lease died (protocol rule 26). A lease without an owner was counted
/// when it was taken off. From the second strike on the job runs alone, and only a death while it really did
/// is counted: what waits for its turn beside another suspect is not to blame.
macro_rules! strikes {
    ($t:literal) => {
        concat!(
            $t,
            ".strikes + CASE WHEN ",
            $t,
            ".owner IS NULL OR (",
            $t,
            ".strikes >= 2 AND ",
            $t,
            ".alone_since IS NULL) THEN 0 ELSE 1 END"
        )
    };
}

/// The columns that make a `Job`, in the order in which `row::job` reads them.
macro_rules! job_columns {
    ($t:literal) => {
        concat!(
            $t,
            ".id, ",
            $t,
            ".seq, ",
            $t,
            ".revision, ",
            $t,
            ".kind, ",
            $t,
            ".type, ",
            $t,
            ".payload::text, ",
            $t,
            ".process_instance, ",
            $t,
            ".execution, ",
            $t,
            ".process_definition, ",
            $t,
            ".element, ",
            $t,
            ".tenant, ",
            $t,
            ".category, ",
            $t,
            ".deployment, ",
            $t,
            ".priority, ",
            $t,
            ".exclusive, ",
            $t,
            ".retries, ",
            $t,
            ".failures, ",
            $t,
            ".retry_policy, ",
            $t,
            ".due_at, ",
            $t,
            ".repeat, ",
            $t,
            ".repeat_until, ",
            $t,
            ".correlation_id, ",
            $t,
            ".created_at, ",
            $t,
            ".ready_at, ",
            $t,
            ".lane, ",
            $t,
            ".exception_message, ",
            $t,
            ".custom_values::text, ",
            $t,
            ".trace_parent"
        )
    };
}

/// The columns that make a `Ready`, in the order in which `row::ready` reads them.
macro_rules! ready_columns {
    ($t:literal) => {
        concat!(
            $t,
            ".id, ",
            $t,
            ".lane, ",
            $t,
            ".exclusive, ",
            $t,
            ".process_instance, ",
            $t,
            ".trace_parent"
        )
    };
}

/// Nothing at all is suspended.
macro_rules! nothing_suspended {
    () => {
        "NOT EXISTS (SELECT FROM jobwire.suspension)"
    };
}

/// Nothing that this job belongs to is suspended. Whether anything is at all is asked once in a statement; the four
/// looks that each job needs else took a third of the time of a lock by row.
macro_rules! not_suspended {
    ($t:literal) => {
        concat!(
            "(",
            $crate::store::postgres::sql::nothing_suspended!(),
            " OR NOT EXISTS (SELECT FROM jobwire.suspension s WHERE (s.scope = 'process_instance' AND s.value = ",
            $t,
            ".process_instance) \
             OR (s.scope = 'process_definition' AND s.value = ",
            $t,
            ".process_definition) \
             OR (s.scope = 'type' AND s.value = ",
            $t,
            ".type) \
             OR (s.scope = 'tenant' AND s.value = ",
            $t,
            ".tenant)))"
        )
    };
}

/// No lock on this job, alive or dead. Asked for as a value: that can't be planned as a join, which would read all leases.
macro_rules! unleased {
    ($t:literal) => {
        concat!(
            "(SELECT l.job_id FROM jobwire.job_lease l WHERE l.job_id = ",
            $t,
            ".id) IS NULL"
        )
    };
}

/// The end of an insert into `jobwire.job_lease AS l`: a lease whose holder died is taken over, one that lives is not.
macro_rules! take_over {
    () => {
        concat!(
            "
    ON CONFLICT (job_id) DO UPDATE
        SET owner = excluded.owner, fence = excluded.fence, locked_at = excluded.locked_at,
            expires_at = excluded.expires_at, alone_since = NULL, strikes = ",
            $crate::store::postgres::sql::strikes!("l"),
            "
        WHERE l.owner IS NULL OR l.expires_at <= clock_timestamp()
    RETURNING l.job_id, l.fence, l.strikes"
        )
    };
}

/// No living lock on this job.
macro_rules! unlocked {
    ($t:literal) => {
        concat!(
            "NOT EXISTS (SELECT FROM jobwire.job_lease l WHERE l.job_id = ",
            $t,
            ".id AND l.owner IS NOT NULL AND l.expires_at > clock_timestamp())"
        )
    };
}

/// Not exclusive, or the first ready sibling of an instance that nobody holds.
macro_rules! in_turn {
    ($t:literal) => {
        concat!(
            "(NOT ",
            $t,
            ".exclusive OR (\
               NOT EXISTS (SELECT FROM jobwire.job e \
                           WHERE e.exclusive AND e.process_instance = ",
            $t,
            ".process_instance AND e.seq < ",
            $t,
            ".seq AND ",
            not_suspended!("e"),
            ") \
               AND NOT EXISTS (SELECT FROM jobwire.instance_lock i \
                               JOIN jobwire.job_lease l ON l.job_id = i.job_id AND l.fence = i.fence \
                               WHERE i.process_instance = ",
            $t,
            ".process_instance AND l.owner IS NOT NULL AND l.expires_at > clock_timestamp())))"
        )
    };
}

pub(super) use {
    in_turn, job_columns, moved_columns, not_suspended, nothing_suspended, ready_columns, strikes,
    take_over, unleased, unlocked,
};
