//! The lanes that a node receives, their order, and their shares of its slots.
//!
//! The node decides for each free slot, among the lanes of which hints wait on this node, so the
//! order is the same on every broker. A lane without waiting hints takes nothing from the others
//! and gains no credit.

use std::fmt;
use std::str::FromStr;

use crate::job::{Lane, text_enum};

/// The largest weight.
pub const MAX_WEIGHT: u32 = 1_000;
/// Maximum number of lanes of one node: each has its own consumer.
pub(crate) const MAX_LANES: usize = 64;

text_enum! {
    /// The way in which lanes share the slots of a node.
    LaneOrder {
        /// By weight: while several lanes have waiting hints, each gets its share of the starts.
        Weighted = "weighted",
        /// A lane gets a slot only when no lane before it has a waiting hint.
        Strict = "strict",
        /// Like `strict`, with a tenth of the starts for old hints: at least every tenth start goes
        /// to the lane whose next hint has waited longest, if that is longer than
        /// [`NodeOptions::lane_aging`](crate::NodeOptions::lane_aging). No lane waits for ever.
        Aging = "aging",
    }
}

#[allow(clippy::derivable_impls, reason = "the macro writes the enum")]
impl Default for LaneOrder {
    fn default() -> Self {
        Self::Weighted
    }
}

/// A lane that a node receives, with its weight. Written `critical=5`; `critical` has weight 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneShare {
    /// The lane.
    pub lane: Lane,
    /// The lane's share of the starts, relative to the weights of the other lanes with waiting
    /// hints; 1 to [`MAX_WEIGHT`]. Must be 1 unless the order is [`LaneOrder::Weighted`].
    pub weight: u32,
}

impl LaneShare {
    /// Creates a lane with a weight.
    pub fn new(lane: impl Into<String>, weight: u32) -> Self {
        Self {
            lane: Lane(lane.into()),
            weight,
        }
    }
}

impl From<Lane> for LaneShare {
    fn from(lane: Lane) -> Self {
        Self { lane, weight: 1 }
    }
}

impl From<&str> for LaneShare {
    fn from(lane: &str) -> Self {
        Self::new(lane, 1)
    }
}

impl FromStr for LaneShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((lane, weight)) = text.split_once('=') else {
            return Ok(text.trim().into());
        };
        let (lane, weight) = (lane.trim(), weight.trim());
        match weight.parse() {
            Ok(weight) => Ok(Self::new(lane, weight)),
            Err(_) => Err(format!(
                "the weight of lane `{lane}` is `{weight}`; write a whole number from 1 to \
                 {MAX_WEIGHT}, for example `{lane}=5`"
            )),
        }
    }
}

impl fmt::Display for LaneShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.weight == 1 {
            self.lane.fmt(f)
        } else {
            write!(f, "{}={}", self.lane, self.weight)
        }
    }
}

/// Returns the mistakes in a node's lanes, each with the remedy.
pub(crate) fn problems(lanes: &[LaneShare], order: LaneOrder) -> Vec<String> {
    let mut found = Vec::new();
    if lanes.is_empty() {
        found.push("is empty; name at least one, for example `default`".to_owned());
    }
    if lanes.len() > MAX_LANES {
        found.push(format!(
            "names {} lanes; at most {MAX_LANES} are allowed: let other nodes receive the rest",
            lanes.len()
        ));
    }
    for (at, share) in lanes.iter().enumerate() {
        let name = share.lane.0.escape_debug();
        if !Lane::is_valid(&share.lane.0) {
            found.push(format!(
                "has the name `{name}`; use 1 to 64 letters, digits, `-`, `_` or `.`"
            ));
        } else if lanes[..at].iter().any(|s| s.lane == share.lane) {
            found.push(format!("names `{name}` twice; name each lane once"));
        }
        if share.weight == 0 || share.weight > MAX_WEIGHT {
            found.push(format!(
                "gives `{name}` the weight {}; give 1 to {MAX_WEIGHT}, or leave the lane out if \
                 this node should not receive it",
                share.weight
            ));
        } else if order != LaneOrder::Weighted && share.weight != 1 {
            found.push(format!(
                "gives `{name}` a weight, which has no effect with `lane_order` {order}; write the \
                 lanes in their order without weights, or set `lane_order` to weighted"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_read_as_they_are_written() {
        for (text, lane, weight) in [("a", "a", 1), (" a = 5 ", "a", 5), ("a=1", "a", 1)] {
            let share: LaneShare = text.parse().expect(text);
            assert_eq!(share, LaneShare::new(lane, weight));
            assert_eq!(share.to_string().parse(), Ok(share));
        }
        assert!(
            "a=five"
                .parse::<LaneShare>()
                .expect_err("no")
                .contains("`five`")
        );
        assert!("a=-1".parse::<LaneShare>().is_err());
        assert!("a=".parse::<LaneShare>().is_err());
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let lanes = [
            LaneShare::new("a", 2),
            LaneShare::new("a", 1),
            LaneShare::new("b c", 0),
        ];
        let said = problems(&lanes, LaneOrder::Strict).join("\n");
        for part in [
            "`a` a weight",
            "`a` twice",
            "`b c`; use",
            "`b c` the weight 0",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(problems(&[], LaneOrder::Weighted)[0].contains("is empty"));
        assert!(problems(&lanes[..1], LaneOrder::Weighted).is_empty());
    }
}
