//! The real program: its commands, settings, errors and exit codes. Budget: 90 s.

mod batches;
mod bench;
mod changing;
mod doctor;
mod endpoints;
mod enqueue;
mod enqueued_batch;
mod escaped;
mod events;
mod home;
mod jobs;
mod lanes;
mod limits;
mod migrate;
mod order;
mod periodic;
mod priorities;
mod purge;
mod remedies;
mod run;
mod secured;
mod settings;
mod suspension;
mod sweep;
mod types;

use std::path::Path;
use std::time::Duration;

use jobwire_core::store::SqlStore;
use jobwire_core::{JobQuery, JobView, SqliteStore, Store};
use jobwire_tests::{Program, Running, Scratch, eventually};

use home::Place;

/// Generates a test of each case on each database.
macro_rules! on_both_databases {
    ($($module:ident { $($case:ident,)+ })+) => {
        mod on_sqlite {
            $(mod $module {
                on_both_databases!(@ jobwire_core::SqliteStore, $module, $($case)+);
            })+
        }
        mod on_postgres {
            $(mod $module {
                on_both_databases!(@ jobwire_core::PgStore, $module, $($case)+);
            })+
        }
    };
    (@ $store:ty, $module:ident, $($case:ident)+) => {
        $(#[tokio::test]
        async fn $case() {
            use crate::program::{$module as cases, home::Home};
            cases::$case(&Home::<$store>::new().await).await;
        })+
    };
}

on_both_databases! {
    jobs {
        a_job_that_waits_for_a_permit_is_shown_with_its_limit,
        jobs_are_listed_by_filter_and_page,
        one_job_is_shown_executed_retried_and_deleted,
        execute_runs_a_job_and_a_timer_before_its_time,
        execute_leaves_an_instance_to_its_turn,
        all_that_match_are_retried_or_deleted,
        a_job_that_the_database_refuses_stops_no_other,
        a_running_job_is_cancelled_where_no_broker_reaches_its_node,
        ids_beside_filters_are_refused,
        retrying_all_means_dead_letters_unless_more_is_named_and_confirmed,
        an_instance_and_start_timers_are_ended,
        a_fault_of_a_job_is_told_once,
        start_timers_are_replaced_by_those_of_a_file,
        all_versions_of_a_definition_are_ended_and_their_start_timers_replaced,
    }
    lanes {
        rules_are_set_from_a_file_and_listed_and_obeyed,
        bad_rules_are_refused_with_every_mistake_and_change_nothing,
        a_lane_is_drained_and_a_running_node_finds_what_moved,
        a_job_that_no_living_node_takes_is_shown_with_the_reason,
        moving_to_a_lane_that_no_living_node_receives_warns,
    }
    periodic {
        periodic_jobs_are_declared_and_operated,
        a_node_declares_its_file_and_runs_each_date,
        schedules_that_can_not_be_created_hold_up_no_other,
        jobs_are_due_in_the_working_time_of_a_file,
    }
    changing {
        each_change_of_a_job_is_made_and_shown,
        an_unlocked_job_has_no_holder_and_keeps_its_attempts,
        attempts_errors_and_incidents_of_a_job_are_shown,
        attempts_of_all_jobs_are_listed_by_filter_and_page,
        a_definition_is_ended_with_its_instances,
    }
    suspension {
        what_stands_still_is_told_and_ends_with_another_command,
        the_jobs_that_an_activation_brings_back_are_counted_also_timers,
        a_scope_without_a_job_is_remarked_and_a_definition_is_exact,
        one_element_of_a_definition_is_suspended_and_activated,
        all_versions_of_a_definition_are_suspended_and_activated,
        a_change_at_a_date_is_a_timer_job,
    }
    priorities {
        rules_are_set_overridden_listed_and_cleared,
        the_jobs_of_a_batch_get_another_priority,
        priorities_that_no_living_node_takes_are_named,
    }
    batches {
        a_batch_is_listed_shown_and_cancelled,
        a_batch_whose_job_at_the_end_can_not_be_created_is_named_with_the_reason,
        open_batches_and_their_ends_are_counted,
        a_bulk_operation_is_left_to_a_node,
    }
    events {
        the_stream_is_switched_on_shown_and_switched_off,
    }
    purge {
        a_tenant_is_purged_after_a_dry_run_and_tags_select_jobs,
    }
    limits {
        a_node_counts_the_jobs_of_each_custom_value_alone,
    }
    enqueue {
        the_ids_of_created_jobs_are_printed,
        a_line_whose_key_a_job_has_tells_that_job,
        a_line_adds_its_job_to_an_open_batch,
        a_bad_line_is_named_and_nothing_of_its_transaction_is_kept,
        every_field_reaches_its_job,
        a_line_creates_a_history_job,
    }
    order {
        the_order_is_relaxed_until_it_is_made_strict,
    }
    escaped {
        fields_of_a_job_are_shown_escaped,
        a_log_of_json_moves_no_cursor,
    }
    doctor {
        types_that_no_node_serves_are_named_with_their_jobs,
        names_that_no_node_takes_are_named_with_their_jobs,
        jobs_that_wait_for_a_calendar_are_named,
        long_leases_of_unknown_nodes_are_named,
    }
}

const SOON: Duration = Duration::from_secs(30);

/// Returns the program in this place.
fn jobwire(home: &impl Place, arguments: &[&str]) -> Program {
    home.program().args(arguments)
}

/// Runs the program and asserts that it succeeds. Returns its output.
async fn succeeds(program: Program) -> String {
    let (status, lines) = program.run(SOON).await;
    let said = lines.join("\n");
    assert!(status.success(), "{status}: {said}");
    said
}

/// Runs the program and asserts that it fails with this exit code. Returns its output.
async fn fails(program: Program, code: i32) -> String {
    let (status, lines) = program.run(SOON).await;
    let said = lines.join("\n");
    assert_eq!(status.code(), Some(code), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// Like `fails`, until the output contains these parts: a server may be slow to answer.
async fn fails_saying(program: impl Fn() -> Program, code: i32, parts: &[&str]) -> String {
    eventually(&format!("an error with {parts:?}"), SOON, async || {
        let said = fails(program(), code).await;
        parts.iter().all(|part| said.contains(part)).then_some(said)
    })
    .await
}

/// Starts a node and waits until it is ready. Returns it and its HTTP address.
async fn start(program: Program) -> (Running, String) {
    let node = program.start();
    let line = node.wait_for_line("is ready", SOON).await;
    let address = jobwire_tests::http::address_in(&line);
    (node, address)
}

/// Opens the default database of a directory.
async fn store(home: &Scratch) -> SqliteStore {
    open(&home.join("jobwire.db")).await
}

async fn open(path: &Path) -> SqliteStore {
    let store = crate::world::patient_file(&format!("sqlite:{}", path.display())).await;
    store.migrate().await.unwrap();
    store
}

/// Changes the database directly.
async fn execute(store: &SqliteStore, statement: &str) {
    let mut tx = store.begin().await.unwrap();
    let statement = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()));
    statement.execute(&mut *tx).await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn all(store: &impl Store) -> Vec<JobView> {
    store.find(&JobQuery::default()).await.unwrap()
}

/// Waits until no job is left.
async fn until_empty(store: &impl Store, deadline: Duration) {
    eventually("every job to be done", deadline, || async {
        (store.count(&JobQuery::default()).await.ok()? == 0).then_some(())
    })
    .await;
}

/// Writes an input file with this number of lines; returns its path.
fn lines(home: &impl Place, line: &str, count: usize) -> String {
    let path = home
        .directory()
        .write("jobs.jsonl", format!("{line}\n").repeat(count));
    path.display().to_string()
}
