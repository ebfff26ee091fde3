//! Lanes behave the same on every broker: one suite of real nodes, run on each.
//!
//! No test measures time, only the order in which jobs start. The broker may deliver the first
//! message of one lane a moment before that of another, so a case tolerates a few early starts, and
//! fails if a lane is treated as if the order did not exist.

mod draining;
mod fleet;
mod sharing;
mod subsets;

/// Generates a test of each case on each broker.
macro_rules! on_every_broker {
    ($($module:ident { $($case:ident),+ $(,)? })+) => {
        mod on_in_process {
            $(mod $module {
                use crate::lanes::{$module as cases, fleet::Fleet};
                $(#[tokio::test]
                async fn $case() {
                    cases::$case(&Fleet::in_process().await).await;
                })+
            })+
        }
        mod on_rabbitmq {
            $(mod $module {
                use crate::lanes::{$module as cases, fleet::Fleet};
                $(#[tokio::test]
                async fn $case() {
                    cases::$case(&Fleet::rabbitmq().await).await;
                })+
            })+
        }
        mod on_kafka {
            $(mod $module {
                use crate::lanes::{$module as cases, fleet::Fleet};
                $(#[tokio::test]
                async fn $case() {
                    cases::$case(&Fleet::kafka().await).await;
                })+
            })+
        }
    };
}

on_every_broker! {
    sharing {
        under_strict_order_nothing_of_a_lower_lane_starts_first,
        under_weights_each_lane_has_its_share_of_the_starts,
        under_aging_each_tenth_start_is_of_a_lane_whose_hints_are_old,
        what_comes_later_in_a_better_lane_overtakes,
        inside_a_lane_the_first_in_is_the_first_out,
        lost_hints_of_a_low_lane_are_healed_while_a_better_one_is_busy,
    }
    draining {
        a_changed_mapping_drains_the_old_lane,
    }
}

/// Generates tests of a fleet; not in-process, which serves one node.
macro_rules! on_fleets {
    ($($broker:ident as $name:ident { $($case:ident),+ $(,)? })+) => {
        $(mod $name {
            use crate::lanes::{subsets as cases, fleet::Fleet};
            $(#[tokio::test]
            async fn $case() {
                cases::$case(&Fleet::$broker().await).await;
            })+
        })+
    };
}

on_fleets! {
    rabbitmq as fleet_on_rabbitmq {
        a_node_with_some_lanes_leaves_the_others_to_others,
        what_a_low_lane_waits_for_in_vain_goes_to_an_idle_node,
    }
    // A partition stays with its node while that node lives.
    kafka as fleet_on_kafka {
        a_node_with_some_lanes_leaves_the_others_to_others,
    }
}
