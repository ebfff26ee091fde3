//! The statements of an engine: the shared texts, with the differences filled in.
//!
//! The lock of an instance while one of its jobs runs ([`InstanceLock`]) has one of two holders:
//!
//! * **The node**, for Flowable: it writes the lock of the instance with the lock of the job. The
//!   rules about instances are rules about that lock. REST locks no instance. A request to the
//!   endpoint states that the instance is held, and the endpoint locks none.
//! * **The engine**, for Activiti, whose instances have no lock owner. The endpoint locks the
//!   instance of an exclusive job, and refuses a locked instance. So a node writes nothing on the
//!   instance. It locks the row of the instance first. A second statement, whose snapshot is newer
//!   than that row lock, searches for locked jobs of the instance.

use super::family::Family;
use super::instance_lock::InstanceLock;
use super::sql::{Parts, filled};
use super::{lock, look, operate, probe, release, renew, rescue, settle, sweep, sweepable, timers};
use crate::options::Execution;
use crate::statements::{Queries, Sweep};

/// The statements of one engine for one way of execution.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(super) lock: &'static str,
    pub(super) claimable: &'static str,
    pub(super) renew: &'static str,
    pub(super) held_by: &'static str,
    pub(super) settle: &'static str,
    pub(super) next: &'static str,
    pub(super) free_expired: &'static str,
    pub(super) free_waited_for: &'static str,
    pub(super) release_instances: &'static str,
    pub(super) release_left: &'static str,
    pub(super) hold: &'static str,
    pub(super) move_due: &'static str,
    pub(super) due_ids: &'static str,
    pub(super) next_due: &'static str,
    pub(super) look: &'static str,
    pub(super) hints_of: &'static str,
    pub(super) facts: &'static str,
    pub(super) stamps: &'static str,
    pub(super) scopes: &'static str,
    pub(super) sweepable: &'static str,
    pub(super) queries: Queries,
    pub(super) sweep: Sweep,
}

impl Statements {
    /// Returns the statements of an engine.
    pub(crate) fn of(family: &Family, execution: Execution) -> Self {
        let mut parts: Vec<(&str, &str)> = match InstanceLock::of(family, execution) {
            InstanceLock::OfNode => OF_NODE.to_vec(),
            InstanceLock::OfEngine => OF_ENGINE.to_vec(),
        };
        parts.push(match execution {
            Execution::Endpoint => ("is free again", UNLOCKED),
            _ => ("is free again", "false"),
        });
        parts.push(match family.lacks("e.lock_owner_") {
            None => ("no instance lock", "lock_owner_ = NULL, lock_time_ = NULL"),
            Some(_) => ("no instance lock", "lock_time_ = NULL"),
        });
        parts.push(match family.lacks("e.lock_owner_") {
            None => ("our instance lock", "starts_with(lock_owner_, 'jobwire:')"),
            Some(_) => ("our instance lock", "false"),
        });
        parts.push(match family.has_external_jobs {
            true => ("no external job", NO_EXTERNAL_JOB),
            false => ("no external job", "true"),
        });
        let fill = |statement: &str| filled(statement, family, &parts);
        Self {
            lock: fill(lock::LOCK),
            claimable: fill(lock::CLAIMABLE),
            renew: fill(renew::RENEW),
            held_by: fill(renew::HELD_BY),
            settle: fill(settle::SETTLE),
            next: fill(settle::NEXT),
            free_expired: fill(rescue::FREE_EXPIRED),
            free_waited_for: fill(rescue::FREE_WAITED_FOR),
            release_instances: fill(release::INSTANCES),
            release_left: fill(release::LEFT),
            hold: fill(timers::HOLD),
            move_due: fill(timers::MOVE),
            due_ids: fill(timers::DUE_IDS),
            next_due: fill(timers::NEXT_DUE),
            look: fill(look::LOOK),
            hints_of: fill(look::HINTS_OF),
            facts: fill(probe::FACTS),
            stamps: fill(probe::STAMPS),
            scopes: fill(probe::SCOPES),
            sweepable: fill(sweepable::SWEEPABLE),
            queries: Queries {
                find: fill(operate::FIND),
                count: fill(operate::COUNT),
                stack: operate::STACK,
            },
            sweep: Sweep {
                orphans: fill(sweep::ORPHANS),
                backlog: fill(sweep::BACKLOG),
                unserved: fill(sweep::UNSERVED),
            },
        }
    }
}

/// True if no external worker holds a job of the instance. The engine locks an instance for such a
/// job, too.
const NO_EXTERNAL_JOB: &str = "NOT EXISTS (SELECT FROM act_ru_external_job x
        WHERE x.process_instance_id_ = e.id_ AND x.lock_exp_time_ IS NOT NULL)";

/// The endpoint returns a job unlocked.
const UNLOCKED: &str = "(j.lock_exp_time_ IS NULL)";

/// The parts where the node holds the lock of an instance.
const OF_NODE: &Parts = &[
    ("rows held", ""),
    ("write instance lock", lock::WRITE_INSTANCE_LOCK),
    ("extended instance", "e.lock_owner_ = h.owner"),
    ("settled instance", settle::OUR_INSTANCE),
    ("is left", "f.id_ IS NOT NULL"),
    ("expired instance", rescue::OUR_INSTANCE),
    ("no job runs", "true"),
    ("no job ran", "true"),
];

/// The parts where the engine holds the lock of an instance.
const OF_ENGINE: &Parts = &[
    ("rows held", "AND e.id_ = ANY($8::text[])"),
    ("write instance lock", ""),
    // The lock that the engine wrote for the execution, when it is about to end.
    ("extended instance", renew::ENDING_INSTANCE_LOCK),
    ("settled instance", settle::LEFT_INSTANCE),
    ("is left", settle::IS_LEFT),
    ("expired instance", rescue::LEFT_INSTANCE),
    ("no job runs", timers::NO_JOB_RUNS),
    ("no job ran", timers::NO_JOB_RAN),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{activiti, flowable};

    fn all(sql: &Statements) -> [&'static str; 26] {
        [
            sql.lock,
            sql.claimable,
            sql.renew,
            sql.held_by,
            sql.settle,
            sql.next,
            sql.free_expired,
            sql.free_waited_for,
            sql.release_instances,
            sql.release_left,
            sql.hold,
            sql.move_due,
            sql.due_ids,
            sql.next_due,
            sql.look,
            sql.hints_of,
            sql.facts,
            sql.stamps,
            sql.scopes,
            sql.sweepable,
            sql.queries.find,
            sql.queries.count,
            sql.queries.stack,
            sql.sweep.orphans,
            sql.sweep.backlog,
            sql.sweep.unserved,
        ]
    }

    #[test]
    fn every_part_of_a_statement_is_filled_in() {
        for (family, execution) in [
            (&flowable::FAMILY, Execution::Rest),
            (&flowable::FAMILY, Execution::Endpoint),
            (&activiti::FAMILY, Execution::Endpoint),
        ] {
            for statement in all(&Statements::of(family, execution)) {
                assert!(!statement.contains(['{', '}']), "{statement}");
            }
        }
    }

    #[test]
    fn the_lock_of_an_instance_is_written_where_the_instance_has_an_owner() {
        let writes = "UPDATE act_ru_execution";
        for execution in [Execution::Rest, Execution::Endpoint] {
            let flowable = Statements::of(&flowable::FAMILY, execution);
            assert!(flowable.lock.contains(writes));
        }
        let activiti = Statements::of(&activiti::FAMILY, Execution::Endpoint);
        assert!(!activiti.lock.contains(writes));
    }

    #[test]
    fn a_job_that_the_endpoint_gives_back_is_released() {
        let endpoint = Statements::of(&flowable::FAMILY, Execution::Endpoint);
        assert!(endpoint.settle.contains(UNLOCKED));
        let rest = Statements::of(&flowable::FAMILY, Execution::Rest);
        assert!(!rest.settle.contains(UNLOCKED));
    }
}
