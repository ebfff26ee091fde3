//! What every store must do: one suite for SQLite, PostgreSQL and the store in memory that the
//! simulation uses.
//!
//! Each case is an async function over any store, named by the behaviour that it requires. No case
//! waits for time to pass: one that needs an expired lease or a due timer moves the stored time
//! back (see `world.rs`).

mod attempts;
mod bad_rows;
mod batches;
mod bed;
mod bounds;
mod bulk;
mod bursts;
mod calendars;
mod catching_up;
mod changing;
mod claiming;
mod concurrency;
mod connections;
mod create_job;
mod creating;
mod dated_gates;
mod definition_keys;
mod deleting;
mod elastic;
mod encryption;
mod ending;
mod exclusive;
mod fencing;
mod finishing;
mod handlers;
mod heartbeats;
mod history;
mod in_transaction;
mod lanes;
mod leading;
mod limit_keys;
mod load;
mod locking;
mod membership;
mod operating;
mod orphans;
mod pausing;
mod periodic;
mod permits;
mod poison;
mod postgres;
mod priorities;
mod purging;
mod purging_search;
mod querying;
mod random_jobs;
mod rates;
mod recording;
mod registry;
mod retries;
mod running;
mod schema;
mod sequences;
mod sqlite;
mod start_order;
mod strict;
mod suspending;
mod timers;
mod unique;
mod world;

/// Generates a test of each case on each store. The store in memory has no transactions, lanes and
/// schemas; one mutex makes each of its transitions atomic, so it needs no concurrency tests.
macro_rules! conformance {
    ($($module:ident {
        $(everywhere [$($case:ident,)+])?
        $(databases [$($real:ident,)+])?
    })+) => {
        mod on_sqlite {
            $(mod $module {
                $(conformance!(@ jobwire_core::SqliteStore, $module, $($case)+);)?
                $(conformance!(@ jobwire_core::SqliteStore, $module, $($real)+);)?
            })+
        }
        mod on_postgres {
            $(mod $module {
                $(conformance!(@ jobwire_core::PgStore, $module, $($case)+);)?
                $(conformance!(@ jobwire_core::PgStore, $module, $($real)+);)?
            })+
        }
        mod in_memory {
            $($(mod $module {
                conformance!(@ jobwire_simulation::simulation::MemoryStore, $module, $($case)+);
            })?)+
        }
    };
    (@ $store:ty, $module:ident, $($case:ident)+) => {
        $(#[tokio::test]
        async fn $case() {
            use crate::store_conformance::{$module as cases, world::World};
            cases::$case(&World::<$store>::open().await).await;
        })+
    };
}

conformance! {
    membership {
        everywhere [
            a_row_says_what_its_node_takes,
            rows_of_silent_nodes_are_removed_but_not_of_those_that_are_heard,
            a_node_locks_jobs_of_its_scope_only,
            a_job_that_no_group_of_nodes_takes_is_gated,
            a_node_locks_jobs_of_its_priorities_only,
            a_priority_that_no_group_of_nodes_takes_is_gated,
        ]
        databases [
            a_node_whose_row_is_from_the_future_is_read_and_a_heard_one_is_kept,
            thousands_of_rows_from_the_future_hide_no_node,
            large_rows_of_nodes_take_no_memory_and_hide_no_smaller_one,
        ]
    }
    registry {
        databases [
            a_node_takes_the_categories_and_deployments_that_are_registered,
        ]
    }
    creating {
        everywhere [
            a_created_job_is_locked_once,
            a_job_with_a_future_due_date_waits_and_one_with_a_past_one_does_not,
        ]
        databases [
            a_rolled_back_job_is_gone,
            an_invalid_job_is_refused_before_anything_is_written,
            every_field_comes_back,
            a_job_that_differs_in_one_field_keeps_it_beside_others,
            ten_thousand_jobs_fit_into_one_transaction,
        ]
    }
    lanes {
        databases [
            the_first_rule_that_fits_chooses_the_lane,
            a_timer_gets_its_lane_when_it_is_created,
            without_rules_the_lane_is_default,
            bad_rules_change_nothing,
            a_job_keeps_its_lane_whatever_becomes_of_it,
            lanes_are_listed_with_what_they_hold,
            jobs_outside_the_lanes_that_are_received_are_counted,
            a_lane_is_moved_in_pages_and_what_is_locked_stays,
            what_waits_elsewhere_changes_its_lane_too,
            what_moves_without_a_hook_is_found_by_the_leader,
            of_an_instance_that_moves_only_the_first_is_hinted,
            a_move_that_can_not_work_moves_nothing,
        ]
    }
    priorities {
        databases [
            the_first_rule_in_camundas_order_gives_the_priority,
            a_cleared_rule_leaves_existing_jobs,
            a_priority_by_the_rules_chooses_the_lane,
            the_rules_give_the_jobs_of_a_batch_their_priority,
            a_change_of_priority_moves_a_job_to_its_lane_unless_its_creator_named_it,
            of_an_instance_and_of_suspended_jobs_only_what_may_run_is_hinted,
            a_job_that_leaves_a_paused_lane_is_hinted,
            a_running_job_keeps_its_priority,
            an_occurrence_has_the_priority_and_the_lane_of_the_one_before,
            an_override_cascades_to_all_but_running_jobs,
            a_cascade_goes_through_many_pages,
            a_cascade_leaves_jobs_with_a_more_specific_override,
            the_members_of_a_batch_and_of_those_inside_it_get_a_priority,
            a_rule_whose_names_do_not_fit_its_scope_is_refused,
            a_lane_that_may_have_been_named_stays,
            a_job_that_stays_in_its_lane_is_hinted_again_if_nodes_take_ranges_of_priorities,
            a_job_that_is_made_urgent_starts_on_the_node_that_takes_its_priority,
        ]
    }
    periodic {
        everywhere [
            a_periodic_job_exists_once_and_a_smaller_version_changes_nothing,
        ]
        databases [
            a_due_job_is_created_with_the_advance_of_its_schedule,
            an_operator_pauses_resumes_runs_and_removes,
            a_schedule_that_can_not_be_read_stops_no_other,
            a_schedule_that_can_be_read_again_creates_its_job_without_a_declaration,
            a_schedule_whose_job_the_database_refuses_keeps_its_date,
            each_second_of_a_schedule_has_its_job,
            due_schedules_are_read_page_by_page,
            a_due_schedule_tells_whether_it_was_changed,
            a_clock_that_was_set_back_leaves_no_schedule_in_the_future,
            a_date_that_no_program_can_read_stops_no_other,
            over_two_changes_of_the_clock_and_killed_leaders_each_date_has_one_job,
        ]
    }
    catching_up {
        databases [
            once_runs_one_of_the_missed_occurrences,
            without_a_suffix_one_of_the_missed_occurrences_runs,
            all_runs_each_missed_occurrence,
            skip_runs_none_of_the_missed_occurrences,
            a_wait_in_the_lane_is_no_reason_for_a_second_late_run,
            an_occurrence_after_the_end_of_its_series_is_removed_without_running,
            an_occurrence_that_has_begun_is_retried_after_the_end_of_its_series,
        ]
    }
    locking {
        everywhere [
            what_can_not_be_locked_is_classified,
            a_batch_with_duplicates_locks_each_job_once,
            an_expired_lock_is_taken_over_with_a_strike,
            a_job_that_was_given_back_starts_without_strikes,
            each_lock_tells_its_time_by_the_databases_clock,
        ]
    }
    elastic {
        databases [
            an_elastic_node_grows_while_hints_wait,
        ]
    }
    encryption {
        databases [
            a_sealed_payload_is_opened_for_its_handler_alone,
            a_checkpoint_and_an_occurrence_stay_sealed,
            a_periodic_job_is_sealed_and_the_same_when_it_is_declared_again,
            a_job_that_can_not_be_opened_is_kept_with_the_reason,
        ]
    }
    limit_keys {
        databases [
            a_limit_counts_the_jobs_of_each_key_of_any_kind_alone,
            keys_of_any_kind_take_turns_under_a_fair_limit,
        ]
    }
    load {
        databases [
            a_flood_of_one_tenant_leaves_the_others_their_share,
            a_flood_under_a_limit_holds_up_no_other_tenant_of_its_lane,
            a_flood_under_a_fair_limit_leaves_the_other_tenants_their_turns,
            woken_jobs_do_not_queue_behind_the_backlog_of_their_lane,
            timers_of_one_second_start_once_and_none_early,
        ]
    }
    purging_search {
        databases [
            no_column_of_any_table_names_a_purged_tenant_or_instance,
        ]
    }
    purging {
        databases [
            no_row_of_a_tenant_or_an_instance_is_left_and_others_stay,
            a_batch_of_the_scope_creates_no_job_after_a_purge,
            a_purged_batch_is_closed_while_its_members_are_deleted,
            a_running_job_is_named_or_cancelled_and_keeps_its_rows,
            more_jobs_than_a_slice_are_purged,
            tags_are_filtered_and_follow_a_job_through_its_states,
        ]
    }
    start_order {
        databases [
            the_rank_of_a_job_is_that_of_its_row,
            jobs_start_in_camundas_order_of_preferences,
        ]
    }
    fencing {
        everywhere [
            the_fence_grows_with_every_lock,
            the_fence_grows_through_failure_timer_and_revival,
            a_stale_owner_changes_nothing_after_a_takeover,
            a_lease_that_ran_out_counts_until_the_leader_ends_it,
            only_the_leaders_turn_ends_a_lease,
            a_node_finds_the_leases_that_it_does_not_know_of,
            another_node_changes_nothing_with_a_guessed_fence,
            a_held_lease_is_renewed,
            a_lease_is_not_renewed_after_a_sibling_took_the_instance,
            a_lease_is_not_renewed_after_its_job_was_suspended,
            from_the_second_strike_on_only_deaths_while_alone_count,
            a_living_loser_takes_its_strike_back_once,
            a_job_that_is_released_before_its_start_keeps_its_strikes,
            a_transaction_completes_only_what_is_held,
        ]
        databases [
            a_suspect_that_never_ran_keeps_its_strikes,
        ]
    }
    finishing {
        everywhere [
            a_completed_job_leaves_nothing_behind,
            a_failed_job_waits_by_the_databases_clock,
            the_earliest_retry_is_told,
            a_dead_letter_keeps_message_and_stack,
            a_snooze_keeps_the_last_message,
            a_wait_counts_from_the_old_due_date_if_that_has_passed,
            a_released_job_is_ready_again,
            the_next_occurrence_is_created_with_the_completion,
            a_lost_lock_creates_no_next_occurrence,
        ]
    }
    timers {
        everywhere [
            due_timers_move_once_in_order_of_their_dates,
            few_due_timers_are_locked_where_they_may_run,
            no_timer_is_locked_that_is_suspended,
            a_timer_for_the_end_of_time_is_read,
            the_next_due_date_is_told,
            no_more_than_asked_for_move,
        ]
    }
    exclusive {
        everywhere [
            two_jobs_of_an_instance_never_run_together,
            the_first_by_creation_runs_whichever_is_hinted,
            a_hint_without_its_instance_tries_it_all_the_same,
            whoever_finishes_takes_the_next,
            a_node_that_stops_only_says_who_is_next,
            failing_hands_over_and_a_waiting_retry_lets_siblings_pass,
            releasing_hints_the_first_again,
            a_dead_holders_instance_is_taken_over,
            an_unserved_first_sibling_blocks,
            an_unserved_sibling_is_not_hinted_over_and_over,
            concurrent_jobs_of_an_instance_run_together,
            a_late_release_does_not_open_an_instance_that_another_holds,
        ]
        databases [
            left_over_instances_are_freed,
        ]
    }
    suspending {
        everywhere [
            what_is_suspended_is_put_aside_and_comes_back,
            a_first_sibling_that_is_put_aside_makes_the_next_one_ready,
            a_locked_job_goes_on_and_its_failure_is_put_aside,
            a_job_created_during_suspension_is_refused_and_hinted_on_activation,
            a_suspension_keeps_only_its_own_jobs_from_being_locked,
            what_is_suspended_twice_stays_until_both_are_lifted,
            activating_what_was_never_suspended_does_nothing,
            an_element_is_suspended_in_its_definition_only,
            elements_whose_names_run_together_are_told_apart,
            an_element_of_a_suspended_definition_waits_for_both,
        ]
        databases [
            a_timer_comes_back_as_a_timer,
            a_suspended_element_is_listed_with_its_jobs,
            an_older_schema_forgets_elements_only,
        ]
    }
    definition_keys {
        everywhere [
            a_key_is_suspended_in_every_version_of_its_tenant,
            keys_whose_names_run_together_are_told_apart,
        ]
        databases [
            a_suspended_key_is_listed_with_its_jobs,
            an_older_schema_forgets_keys_only,
            a_key_ends_with_the_jobs_of_all_its_versions,
            the_start_timers_of_all_versions_are_replaced_with_the_transaction,
            start_timers_of_another_key_or_tenant_change_nothing,
        ]
    }
    pausing {
        databases [
            what_is_paused_stays_ready_and_is_hinted_at_the_end,
            a_pause_keeps_only_its_own_jobs_from_being_locked_and_claimed,
            what_is_paused_is_no_orphan_before_the_end_and_one_after_it,
            a_due_timer_of_a_pause_waits_in_the_executable_table,
            a_running_job_goes_on_through_a_pause_and_its_failure_waits_as_a_timer,
            a_paused_first_sibling_keeps_its_instance_waiting,
            the_siblings_of_a_running_job_are_hinted_at_the_end,
            only_a_pause_of_its_own_type_covers_a_change_at_a_date,
            a_job_of_two_pauses_waits_for_both,
            many_jobs_come_back_in_pages,
            an_interrupted_end_of_a_suspension_is_continued,
            a_leader_cycle_counts_suspensions_and_pauses_by_scope,
        ]
    }
    dated_gates {
        databases [
            a_scope_is_suspended_and_activated_at_a_date,
            an_element_is_suspended_and_activated_at_a_date,
            a_definition_key_is_suspended_and_activated_at_a_date,
            a_scope_is_paused_and_resumed_at_a_date,
            changes_that_are_due_at_once_take_effect_by_their_dates,
            an_end_waits_for_a_beginning_that_is_tried_again,
        ]
    }
    leading {
        everywhere [
            one_node_leads_and_others_learn_who,
            a_leader_that_resigns_is_followed_at_once,
            a_follower_changes_nothing,
            expired_locks_are_reset_and_returned_once,
            no_more_than_asked_for_are_reset,
            a_rescued_job_is_told_again_until_it_is_locked,
            a_rescued_job_behind_an_elder_sibling_is_told_again,
            no_lock_is_taken_off_while_the_clock_is_doubted,
            jobs_created_by_sql_are_returned_once,
            unhinted_jobs_are_found_without_a_turn,
            the_report_counts_what_there_is,
        ]
        databases [
            an_expired_leader_is_replaced,
            a_rescued_job_of_a_long_life_is_told_again_soon,
            a_leader_whose_lease_no_leader_could_have_is_replaced,
            a_lease_without_a_job_counts_as_no_running_job,
            a_lease_that_ends_later_than_any_node_asks_for_has_ended,
            a_lease_without_a_job_ends_with_its_time,
        ]
    }
    orphans {
        everywhere [
            what_became_ready_just_now_is_not_suspected,
            what_is_old_and_unlocked_is_suspected,
            what_is_gated_is_not_suspected,
            only_the_first_sibling_is_suspected,
            a_marked_orphan_waits_before_the_next_suspicion,
            orphans_are_paged_by_id,
            what_a_node_holds_is_not_suspected,
        ]
        databases [
            an_id_from_the_future_is_found_in_the_whole_table,
            a_job_that_became_ready_in_the_future_is_suspected,
            what_an_open_transaction_may_have_written_is_not_suspected,
            jobs_that_no_node_takes_are_counted_by_type,
            jobs_whose_scope_no_node_takes_are_counted,
            the_names_that_no_node_takes_are_counted_with_their_jobs,
            a_dry_run_counts_jobs_in_lanes_that_no_node_receives_apart,
        ]
    }
    claiming {
        everywhere [
            jobs_are_claimed_page_by_page_in_the_order_of_their_ids,
            a_claimed_job_is_completed_like_a_hinted_one,
            what_is_gated_is_not_claimed,
            of_an_instance_only_the_first_ready_sibling_is_claimed,
            an_unserved_first_sibling_keeps_the_others_from_being_claimed,
            what_a_dead_node_held_is_claimed_with_a_strike,
            rescued_jobs_and_suspects_are_claimed_apart,
            what_can_not_be_taken_is_passed_slice_by_slice,
            four_nodes_that_claim_at_once_take_different_jobs,
        ]
    }
    operating {
        everywhere [
            a_deleted_sibling_says_who_is_next,
            a_running_job_is_not_deleted,
            a_job_of_any_state_is_deleted,
            a_dead_letter_is_retried,
            many_jobs_are_retried_at_once_and_each_is_accounted_for,
            many_jobs_are_deleted_at_once_and_each_is_accounted_for,
            a_revival_adds_no_attempts,
            a_running_job_is_not_retried,
            an_executable_job_is_hinted_again,
            jobs_are_found_by_what_they_are,
            lists_are_paged_in_creation_order,
            one_job_is_shown_with_its_stack,
        ]
        databases [
            what_a_client_without_hints_makes_ready_is_noted_for_a_leader,
        ]
    }
    querying {
        everywhere [
            a_list_goes_on_behind_a_job_that_is_gone,
            a_query_that_can_not_be_asked_is_refused,
            a_job_that_was_created_during_a_suspension_counts_as_suspended,
            the_order_by_definition_key_keeps_the_versions_of_a_key_together,
        ]
        databases [
            the_pages_of_any_query_are_its_matches_in_order,
            one_row_of_odd_custom_values_ends_no_query,
        ]
    }
    running {
        databases [
            a_cancel_deletes_what_waits_and_marks_what_runs,
            a_cancelled_job_is_deleted_whatever_else_ends_its_lease,
            a_cancelled_job_of_a_dead_node_does_not_run_again,
            a_cancelled_job_that_is_done_has_no_next_occurrence,
            a_cancel_stays_when_the_job_changes_its_node,
            progress_is_written_under_the_lock_and_shown,
            a_checkpoint_outlives_the_node_and_every_move,
            rows_of_gone_jobs_are_pruned_and_others_stay,
        ]
    }
    changing {
        databases [
            a_change_applies_to_its_states_only,
            a_running_job_is_not_changed_and_a_missing_one_is_told,
            a_value_that_can_not_be_changes_nothing,
            a_job_that_leaves_its_instance_lets_the_next_one_go,
            a_suspended_scope_keeps_its_jobs_from_activation,
            an_activated_timer_waits_for_its_due_date,
            an_unlocked_job_is_ready_again_and_its_old_holder_changes_nothing,
            an_instance_ends_with_all_its_jobs_in_the_callers_transaction,
            the_end_of_an_execution_lets_the_next_job_of_its_instance_go,
            a_definition_ends_with_its_instances_and_its_start_timers,
            start_timers_are_replaced_with_the_transaction,
        ]
    }
    ending {
        databases [
            a_running_job_whose_scope_ends_does_not_run_again,
            a_start_timer_that_is_replaced_while_it_runs_has_no_successor,
            a_handler_that_ends_its_own_instance_completes_its_job,
        ]
    }
    handlers {
        databases [
            a_handler_says_when_its_job_is_tried_again,
            a_panic_a_timeout_and_a_bad_payload_are_failures_like_any_other,
            a_job_that_its_handler_cancels_is_deleted_and_no_occurrence_follows,
            a_handler_of_the_user_replaces_a_built_in_one,
            a_job_that_ends_during_a_shutdown_is_done_and_a_new_one_is_left,
        ]
    }
    retries {
        databases [
            the_function_of_a_handler_chooses_the_wait_by_the_job_and_its_error,
            a_node_counts_the_wait_from_now_or_from_the_due_date_of_the_attempt,
            a_handler_names_the_date_of_the_next_attempt,
            a_snooze_and_a_conflict_cost_no_attempt,
        ]
    }
    heartbeats {
        databases [
            a_handler_without_a_heartbeat_times_out_and_one_with_it_goes_on,
        ]
    }
    bulk {
        databases [
            a_bulk_operation_acts_on_all_jobs_that_match_and_on_no_other,
        ]
    }
    bursts {
        databases [
            as_many_jobs_start_at_once_as_the_burst_of_their_rate_says,
        ]
    }
    in_transaction {
        databases [
            an_operation_commits_with_the_callers_row,
            a_transaction_hints_each_job_once_at_its_commit,
            an_operation_that_does_not_apply_says_why,
            a_refused_operation_changes_nothing_and_its_transaction_goes_on,
            an_interrupted_operation_commits_nothing,
            the_events_of_operations_are_told_after_the_commit,
            a_cancelled_job_that_is_unlocked_ends_as_cancelled,
            a_handler_operates_on_jobs_in_its_completing_transaction,
            a_scope_is_suspended_with_the_callers_row,
            a_scope_is_activated_with_the_callers_row,
            what_one_transaction_suspends_and_activates_runs,
            an_interrupted_suspension_commits_nothing,
            what_is_activated_without_a_transport_is_noted,
            handlers_suspend_and_activate_in_their_completing_transactions,
        ]
    }
    sequences {
        databases [
            any_sequence_of_operations_keeps_a_job_in_one_table,
        ]
    }
    history {
        databases [
            a_history_job_has_its_lane_and_ten_attempts,
            a_history_job_keeps_its_kind_through_every_table,
            a_repeating_history_job_is_refused,
            attempts_are_recorded_with_their_outcomes,
            an_attempt_ends_before_the_incident_that_it_opens,
            an_attempt_commits_with_the_handlers_transaction,
            a_forged_attempt_suppresses_no_true_one,
            the_death_of_a_node_is_an_attempt_of_types_that_record_them,
            a_death_is_recorded_whatever_the_time_for_which_it_is_kept,
            a_cancelled_job_of_a_dead_node_has_its_attempt,
            a_node_that_was_taken_for_dead_says_that_it_lost_its_lock,
            a_dead_letter_is_an_incident_until_it_is_revived_or_deleted,
            dead_letters_before_the_migration_are_incidents,
            a_row_that_is_set_aside_is_an_incident,
            errors_are_grouped_by_type_and_message,
            what_is_old_is_pruned_in_slices,
        ]
    }
    attempts {
        databases [
            the_pages_of_any_query_for_attempts_are_its_matches_in_order,
            attempts_of_all_jobs_are_listed_by_what_they_are,
            a_list_of_attempts_goes_on_behind_one_that_is_gone,
            a_query_for_attempts_that_can_not_be_asked_is_refused,
            one_odd_row_ends_no_list_of_attempts,
        ]
    }
    recording {
        databases [
            a_node_records_the_attempts_of_types_that_ask_for_it,
            the_attempts_of_a_dead_node_are_recorded_by_one_that_records_its_type,
            the_attempts_of_a_dead_node_are_recorded_by_a_leader_without_its_types,
            history_jobs_are_worked_off_in_groups_on_a_node_of_their_lane,
        ]
    }
    bounds {
        databases [
            what_does_not_fit_is_refused,
            a_row_with_an_end_and_no_series_runs,
            what_an_older_program_writes_fits,
            a_migration_sets_aside_what_does_not_fit,
            a_row_is_set_aside_whatever_is_in_it,
            an_id_that_stands_in_two_tables_gets_a_new_one,
            counts_stop_at_their_bound,
            the_successor_of_an_odd_row_is_a_copy_of_it,
        ]
    }
    bad_rows {
        databases [
            bad_rows_stop_no_good_one,
            a_series_whose_interval_is_no_binary_fraction_goes_on,
        ]
    }
    poison {
        databases [
            a_bad_timer_among_good_ones_is_set_aside,
            a_bad_timer_stops_no_few_that_are_taken,
            a_bad_successor_stops_no_other_completion,
            a_bad_failure_stops_no_other,
            a_job_set_aside_leaves_its_instance,
            a_bad_release_stops_no_other,
            a_bad_row_stops_no_turn,
            a_bad_row_that_was_never_hinted_stops_no_other,
            a_bad_row_that_a_node_holds_is_not_set_aside,
            a_bad_orphan_stops_no_other,
            a_bad_row_stops_no_deletion,
            a_bad_row_stops_no_retry,
            a_bad_row_stops_no_suspension,
            what_was_brought_back_before_a_refusal_is_hinted_at_the_end,
            a_bad_row_stops_no_activation,
            a_bad_row_stops_no_move_to_another_lane,
            an_id_that_stands_in_two_tables_stops_no_timer,
            counters_at_the_end_of_their_range_go_on,
            where_nothing_commits_nothing_is_set_aside,
            where_a_new_constraint_refuses_a_page_nothing_is_set_aside,
            of_a_small_page_one_row_is_set_aside,
            a_hundred_rows_a_minute_are_set_aside,
            a_page_of_bad_timers_stops_no_timer_behind_it,
            bad_timers_stop_no_few_behind_them,
            a_turn_of_which_no_row_commits_leads,
            a_page_of_bad_rows_stops_no_row_behind_it,
            bad_orphans_end_no_pass_of_their_lane,
            thousands_of_bad_rows_stop_no_turn_and_no_row_behind_them,
            thousands_of_bad_timers_stop_no_timer_behind_them,
            an_unreadable_row_fails_no_batch,
        ]
    }
    strict {
        databases [
            a_waiting_retry_keeps_its_siblings_waiting,
            a_retry_that_is_put_off_again_keeps_its_siblings_waiting,
            a_dead_letter_keeps_its_siblings_waiting_until_it_is_deleted,
            a_suspended_job_keeps_its_siblings_waiting,
            a_job_created_during_a_suspension_keeps_its_siblings_waiting,
            a_timer_that_never_ran_keeps_nobody_waiting,
            a_younger_dead_letter_keeps_no_elder_job_waiting,
            a_wait_that_spends_no_attempt_keeps_siblings_waiting,
            relaxed_again_the_siblings_go_on,
        ]
    }
    unique {
        databases [
            while_a_job_has_a_key_it_stands_for_the_others,
            a_job_that_is_created_again_exists_once,
            a_key_belongs_to_a_type_and_a_tenant_unless_it_is_global,
            of_the_jobs_of_a_transaction_the_first_has_the_key,
            a_key_is_free_after_a_rollback,
            a_job_keeps_its_key_through_every_table_until_its_end,
            a_dead_letter_has_its_key_if_asked_to,
            a_key_of_a_period_outlives_its_job_and_ends_with_the_period,
            a_dead_letter_whose_key_another_job_has_is_not_revived,
            free_keys_are_pruned_and_taken_ones_stay,
            of_many_creators_at_once_one_creates_the_job,
            the_next_creator_follows_the_end_of_a_job_at_once,
        ]
    }
    rates {
        databases [
            permits_of_a_node_expire_a_cool_down_after_its_trust,
            a_permit_that_a_node_hands_over_is_in_use_until_it_is_cold,
            no_permit_is_handed_over_that_the_database_does_not_know_of,
            jobs_that_wait_for_permits_that_cool_down_for_long_go_on_waiting,
            permits_that_cool_down_for_long_need_a_bounded_number_of_rows,
            a_waiting_job_of_a_tenant_that_no_node_takes_reserves_nothing,
        ]
    }
    batches {
        databases [
            a_member_keeps_its_batch_open_in_every_table,
            of_two_ends_at_once_one_creates_the_job,
            dead_letters_count_as_ended_if_the_batch_says_so,
            a_member_that_another_program_deleted_is_noticed,
            a_batch_grows_until_its_end,
            a_batch_of_a_rollback_is_gone,
            a_batch_may_be_a_member_of_another,
            a_cancelled_batch_loses_its_members_and_creates_no_job,
            an_interrupted_cancel_finds_the_batches_inside_again,
            an_old_member_keeps_a_large_batch_open,
            a_batch_of_many_dead_letters_ends_in_slices,
            batches_are_listed_and_forgotten_after_their_time,
            a_batch_whose_id_at_the_end_is_taken_ends_without_its_job_and_keeps_the_fields,
            a_job_at_the_end_that_a_trigger_refuses_keeps_its_batch_open_until_it_is_dropped,
            a_batch_whose_template_can_not_be_read_stays_open_and_stops_no_other,
            whatever_becomes_of_its_members_a_batch_ends_once,
        ]
    }
    permits {
        databases [
            all_nodes_together_borrow_no_more_than_the_size,
            a_job_without_a_permit_waits_and_the_first_is_woken,
            waiting_jobs_of_a_fair_limit_take_turns,
            a_woken_job_that_comes_too_late_keeps_its_turn,
            jobs_without_a_turn_are_not_overtaken_by_a_flood_of_newer_ones,
            a_job_without_a_turn_is_not_overtaken_for_ever,
            a_place_at_either_end_stops_no_job_of_a_fair_limit,
            a_waiting_job_is_passed_over_while_its_key_is_in_use,
            permits_of_a_dead_node_are_free_when_its_leases_have_ended,
            a_parked_exclusive_job_stays_the_first_of_its_instance,
            a_lost_lock_is_not_parked_and_a_cancelled_job_is_deleted,
            a_waiting_job_that_is_deleted_holds_no_other_back,
            thousands_of_rows_whose_jobs_are_gone_hold_no_other_back,
            waiting_jobs_that_nobody_may_lock_hold_no_other_back,
            a_parked_job_keeps_its_strikes,
            permits_are_not_freed_while_the_clock_is_in_doubt,
            a_job_that_was_woken_in_the_future_reserves_nothing,
            a_late_request_takes_no_job_of_another_holder_out_of_the_queue,
            the_row_of_a_key_goes_with_its_last_permit,
            a_permit_that_no_node_would_borrow_for_so_long_ends,
            jobs_under_a_limit_of_one_exclude_each_other,
        ]
    }
    calendars {
        databases [
            a_new_job_is_dated_where_its_calendar_is_known,
            each_working_day_of_a_year_has_one_job,
            a_schedule_waits_for_a_node_that_knows_its_calendar,
            a_series_is_dated_by_the_first_store_that_knows_its_calendar,
            jobs_that_wait_for_a_calendar_are_counted,
        ]
    }
    concurrency {
        databases [
            eight_nodes_with_overlapping_hints_run_each_job_once,
        ]
    }
    schema {
        databases [
            migrations_go_down_and_up_again,
            an_empty_database_is_outdated,
            a_newer_schema_is_refused_only_if_it_says_so,
        ]
    }
}
