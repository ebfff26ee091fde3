//! What every transport must do: one suite for the in-process transport, RabbitMQ and Kafka.
//!
//! Each case is an async function over any transport, named by the behaviour that the contract in
//! `jobwire_core::transport` requires. No case concludes anything from silence: another receiver,
//! or the next message, shows that a message is held back or gone.

mod control;
mod holding;
mod publishing;
mod receiving;
pub(crate) mod subject;

/// Generates a test of each case on each transport.
macro_rules! conformance {
    ($($module:ident { $($case:ident),+ $(,)? })+) => {
        mod on_in_process {
            $(mod $module {
                use crate::transport_conformance::{$module as cases, subject::Subject};
                $(#[tokio::test]
                async fn $case() {
                    cases::$case(&Subject::in_process().await).await;
                })+
            })+
        }
        mod on_rabbitmq {
            $(mod $module {
                use crate::transport_conformance::{$module as cases, subject::Subject};
                $(#[tokio::test]
                async fn $case() {
                    cases::$case(&Subject::rabbitmq().await).await;
                })+
            })+
        }
        mod on_kafka {
            $(mod $module {
                use crate::transport_conformance::{$module as cases, subject::Subject};
                $(#[tokio::test]
                async fn $case() {
                    cases::$case(&Subject::kafka().await).await;
                })+
            })+
        }
        mod on_rabbitmq_quorum_queues {
            $(mod $module {
                use crate::transport_conformance::{$module as cases, subject::Subject};
                $(#[tokio::test]
                async fn $case() {
                    cases::$case(&Subject::rabbitmq_quorum().await).await;
                })+
            })+
        }
    };
}

conformance! {
    publishing {
        hints_arrive_whole_and_in_order,
        ten_thousand_hints_leave_in_one_call,
        nothing_to_publish_is_no_error,
        a_marker_comes_after_what_was_confirmed_before_it,
        lanes_do_not_mix,
        what_nobody_receives_waits,
        a_closed_transport_says_so,
    }
    receiving {
        no_more_arrive_at_once_than_were_asked_for,
        a_receive_that_is_given_up_loses_nothing,
        all_lanes_of_a_subscription_are_received,
        no_more_are_unsettled_than_the_prefetch,
        settling_makes_room,
        a_prefetch_that_changes_holds_for_the_next_messages,
        a_busy_lane_keeps_no_other_from_arriving,
        a_lane_that_is_not_settled_leaves_room_for_another,
    }
    holding {
        a_message_goes_to_one_receiver,
        what_is_unsettled_goes_to_another_receiver,
        what_is_settled_never_comes_back,
        settling_out_of_order_forgets_only_what_was_settled,
        what_is_given_back_goes_to_another_receiver,
        a_paused_receiver_leaves_everything_to_others,
        a_paused_receiver_may_still_settle_what_it_has,
        a_resumed_receiver_receives_again,
        a_ticket_of_a_receiver_that_is_gone_is_harmless,
    }
    control {
        every_listener_hears_what_is_told,
        what_a_newer_node_says_does_no_harm,
    }
}
