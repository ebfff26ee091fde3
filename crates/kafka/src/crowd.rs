//! Warns when a lane has more nodes than its topic has partitions.
//!
//! A member without a partition does not prove this. For a while, a group also leaves members
//! without a partition if its broker died, if its leader lacked the topic's metadata, or if it
//! waits for a dead member. So this task asks the brokers, and warns only if all of this holds:
//! - the group's last rebalance is over and left this member without a partition;
//! - every broker answers, and the group's state is `Stable`;
//! - the group has more members than the topic has partitions;
//! - two checks in a row had this result. Between them the session of a dead member ends.
//!
//! A member that has a partition sends no requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::transport::TransportError;
use rdkafka::client::{Client, ClientContext};

use crate::connection::ANSWER;
use crate::error::explain_error;
use crate::lane_client::LaneState;
use crate::topology::Topology;

/// The shortest interval between two checks. It is at least the session timeout.
const LOOK: Duration = Duration::from_secs(30);
/// Number of checks in a row that must agree.
const LOOKS: u32 = 2;

/// The group and topic of a lane, as the brokers report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crowd {
    /// The group is not in a rebalance.
    settled: bool,
    members: usize,
    partitions: usize,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// This member has a partition.
    Served,
    /// The group is in a rebalance, or the request failed.
    Unknown,
    /// This member has no partition.
    LeftOut(Crowd),
}

/// The results of the checks so far.
#[derive(Default)]
struct Looks {
    agreed: u32,
    told: bool,
}

impl Looks {
    /// Records a result. Returns the crowd to warn about, once.
    fn saw(&mut self, seen: Seen) -> Option<Crowd> {
        let crowd = match seen {
            Seen::LeftOut(crowd) if crowd.settled && crowd.members > crowd.partitions => crowd,
            Seen::LeftOut(_) | Seen::Unknown => {
                self.agreed = 0;
                return None;
            }
            Seen::Served => {
                *self = Self::default();
                return None;
            }
        };
        self.agreed += 1;
        let tell = self.agreed >= LOOKS && !self.told;
        self.told |= tell;
        tell.then_some(crowd)
    }
}

/// Checks the lane while its client is polled.
pub(crate) async fn watch(state: Arc<LaneState>, topology: Topology) -> Infallible {
    let mut looks = Looks::default();
    let every = LOOK.max(topology.options.session_timeout);
    loop {
        tokio::time::sleep(every).await;
        let Some(crowd) = looks.saw(look(&state, &topology).await) else {
            continue;
        };
        tracing::warn!(
            lane = %state.lane,
            nodes = crowd.members,
            partitions = crowd.partitions,
            "this node receives no hints of the lane: its topic has fewer partitions than there \
             are nodes; add partitions"
        );
    }
}

async fn look(state: &LaneState, topology: &Topology) -> Seen {
    let standing = || {
        let assignment = state.assignment();
        (assignment.placed, assignment.is_left_out())
    };
    match standing() {
        (true, false) => return Seen::Served,
        (false, _) => return Seen::Unknown,
        (true, true) => {}
    }
    let topic = topology.endpoint.topic(&state.lane);
    let group = topology.endpoint.group(&state.lane);
    let asked = topology.producers.ask(move |client| ask(client, &group));
    let seen = match asked.await {
        Ok((settled, members)) => match topology.partitions(&state.lane).await {
            Ok(partitions) if partitions > 0 => Seen::LeftOut(Crowd {
                settled,
                members,
                partitions: usize::try_from(partitions).unwrap_or(usize::MAX),
            }),
            Ok(_) => Seen::Unknown,
            Err(problem) => unknown(state, &problem),
        },
        Err(problem) => unknown(state, &problem),
    };
    tracing::debug!(lane = %state.lane, topic, ?seen, "this node has no partition of the lane");
    // A rebalance may have started meanwhile.
    if standing() == (true, true) {
        seen
    } else {
        Seen::Unknown
    }
}

fn unknown(state: &LaneState, problem: &TransportError) -> Seen {
    tracing::debug!(lane = %state.lane, %problem, "the members of the lane's group can't be read");
    Seen::Unknown
}

/// Returns whether a group is `Stable`, and its number of members. Fails if a broker does not
/// answer. Blocks.
fn ask<C: ClientContext>(client: &Client<C>, group: &str) -> Result<(bool, usize), TransportError> {
    let list = client
        .fetch_group_list(Some(group), ANSWER)
        .map_err(|error| explain_error(&error, group))?;
    let found = list.groups().iter().find(|found| found.name() == group);
    Ok(found.map_or((false, 0), |found| {
        (found.state() == "Stable", found.members().len())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(settled: bool, members: usize, partitions: usize) -> Seen {
        Seen::LeftOut(Crowd {
            settled,
            members,
            partitions,
        })
    }

    #[test]
    fn two_looks_that_agree_are_told_once() {
        let mut looks = Looks::default();
        let crowded = left_out(true, 3, 2);
        assert_eq!(looks.saw(crowded), None);
        let told = looks.saw(crowded).unwrap();
        assert_eq!((told.members, told.partitions), (3, 2));
        assert_eq!(looks.saw(crowded), None);
        // The brokers are away for a moment: no second warning.
        assert_eq!(looks.saw(Seen::Unknown), None);
        assert_eq!(looks.saw(crowded), None);
        assert_eq!(looks.saw(crowded), None);
        // The member had a partition in between.
        assert_eq!(looks.saw(Seen::Served), None);
        assert_eq!(looks.saw(crowded), None);
        assert!(looks.saw(crowded).is_some());
    }

    #[test]
    fn three_nodes_never_lack_partitions_of_twelve() {
        let mut looks = Looks::default();
        for settled in [true, false] {
            for members in 0..=12 {
                for _ in 0..10 {
                    assert_eq!(looks.saw(left_out(settled, members, 12)), None);
                }
            }
        }
    }

    #[test]
    fn a_rebalance_or_a_silent_broker_between_two_looks_proves_nothing() {
        let crowded = left_out(true, 3, 2);
        for between in [Seen::Unknown, left_out(false, 3, 2), left_out(true, 2, 2)] {
            let mut looks = Looks::default();
            for _ in 0..10 {
                assert_eq!(looks.saw(crowded), None);
                assert_eq!(looks.saw(between), None);
            }
        }
    }
}
