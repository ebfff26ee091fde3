//! The end of an instance, an execution or a definition, in the caller's transaction.

use std::collections::BTreeSet;

use sqlx::{Row, SqliteConnection};

use super::decode;
use super::operate::mark_cancelled;
use super::sql::{definition_key_of, unlocked};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::{Ended, EndedScope};

/// The statements of a scope: the jobs that run, and the deletion of the others.
struct Statements {
    running: &'static str,
    /// The last one deletes dead letters.
    delete: [&'static str; 4],
}

macro_rules! gone {
    ($table:literal, $scope:expr, $and:expr) => {
        concat!(
            "DELETE FROM ",
            $table,
            " AS j WHERE ",
            $scope,
            $and,
            " RETURNING id, exclusive, process_instance"
        )
    };
}

macro_rules! statements {
    ($scope:expr) => {
        Statements {
            running: concat!(
                "SELECT j.id FROM job j WHERE ",
                $scope,
                " AND NOT ",
                unlocked!("j")
            ),
            delete: [
                gone!("job", $scope, concat!(" AND ", unlocked!("j"))),
                gone!("timer_job", $scope, ""),
                gone!("suspended_job", $scope, ""),
                gone!("dead_letter_job", $scope, ""),
            ],
        }
    };
}

/// Two conditions, because an index of its own finds the exclusive jobs of an instance.
const PROCESS_INSTANCE: Statements = statements!(
    "(j.exclusive AND j.process_instance = ?1 OR NOT j.exclusive AND j.process_instance = ?1)"
);
const EXECUTION: Statements = statements!("j.execution = ?1");
const PROCESS_DEFINITION: Statements = statements!("j.process_definition = ?1");
const DEFINITION_KEY: Statements = statements!(concat!(definition_key_of!("j"), " = ?1"));
const START_TIMERS: Statements =
    statements!("j.process_definition = ?1 AND j.process_instance IS NULL AND j.kind = 'timer'");
const START_TIMERS_OF_KEY: Statements = statements!(concat!(
    definition_key_of!("j"),
    " = ?1 AND j.process_instance IS NULL AND j.kind = 'timer'"
));

/// Deletes the leases and the stacks of these jobs.
const DELETE_THEIR: [&str; 3] = [
    "DELETE FROM job_lease WHERE job_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM job_exception WHERE job_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM job_progress WHERE job_id IN (SELECT value FROM json_each(?1))",
];

/// Deletes the jobs of a scope that no node runs, and marks the others as cancelled, except `own`.
pub(super) async fn end(
    connection: &mut SqliteConnection,
    scope: &EndedScope,
    own: Option<JobId>,
) -> Result<Ended, StoreError> {
    let statements = match scope {
        EndedScope::ProcessInstance(_) => PROCESS_INSTANCE,
        EndedScope::Execution(_) => EXECUTION,
        EndedScope::ProcessDefinition(_) => PROCESS_DEFINITION,
        EndedScope::DefinitionKey(_) => DEFINITION_KEY,
        EndedScope::StartTimers(_) => START_TIMERS,
        EndedScope::StartTimersOfKey(_) => START_TIMERS_OF_KEY,
    };
    let value = scope.value();
    let running = sqlx::query(statements.running)
        .bind(&*value)
        .fetch_all(&mut *connection)
        .await?;
    let mut ended = Ended {
        running: decode::readable_job_ids(&running),
        ..Ended::default()
    };
    for id in ended.running.iter().filter(|id| own != Some(**id)) {
        mark_cancelled(connection, *id).await?;
    }
    let mut instances = BTreeSet::new();
    for statement in statements.delete {
        let gone = sqlx::query(statement)
            .bind(&*value)
            .fetch_all(&mut *connection)
            .await?;
        ended.dead_letters = decode::readable_job_ids(&gone);
        ended.deleted.extend(&ended.dead_letters);
        for row in &gone {
            if row.try_get::<bool, _>(1)? {
                instances.extend(decode::instance(row, 2));
            }
        }
    }
    let deleted = decode::array(&ended.deleted)?;
    for statement in DELETE_THEIR {
        sqlx::query(statement)
            .bind(&deleted)
            .execute(&mut *connection)
            .await?;
    }
    ended.left = Vec::from_iter(instances);
    Ok(ended)
}
