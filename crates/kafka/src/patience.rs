//! How often the clients of a lane are looked at for a [stall](crate::stall), and why the last one was
//! replaced.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// The shortest interval between two looks.
pub(crate) const LOOK: Duration = Duration::from_secs(15);
/// The longest interval, after many replaced clients.
const LOOK_RARELY: Duration = Duration::from_secs(1_800);
/// The time after which a message of any partition shows that replacing the client helped.
const FORGET: Duration = Duration::from_secs(600);

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    Join,
    Fetch { partition: i32 },
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Join => f.write_str(
                "it did not get into its group (unless the coordinator of the group does not answer)",
            ),
            Self::Fetch { partition } => {
                write!(f, "it fetched nothing from partition {partition}")
            }
        }
    }
}

/// The interval between two looks at the clients of a lane.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(crate) interval: Duration,
    /// Why and when the last client was replaced, if nothing has shown since that this helped.
    last: Option<(Stall, Instant)>,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            interval: LOOK,
            last: None,
        }
    }

    /// Records that a client was replaced.
    pub(crate) fn replaced(&mut self, stall: Stall) {
        self.interval = (self.interval * 2).min(LOOK_RARELY);
        // A client that gets into its group does not show that a partition flows again.
        if !matches!(
            (self.last, stall),
            (Some((Stall::Fetch { .. }, _)), Stall::Join)
        ) {
            self.last = Some((stall, Instant::now()));
        }
    }

    /// Records that the client got into its group.
    pub(crate) fn placed(&mut self) {
        if let Some((Stall::Join, _)) = self.last {
            *self = Self::new();
        }
    }

    /// Records that a message has arrived.
    pub(crate) fn arrived(&mut self, partition: i32) {
        let Some((stall, at)) = self.last else {
            return;
        };
        let helped = match stall {
            Stall::Join => true,
            // Another node may have got the partition.
            Stall::Fetch { partition: stalled } => stalled == partition || at.elapsed() > FORGET,
        };
        if helped {
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn patience_grows_with_clients_that_get_nothing() {
        let mut patience = Patience::new();
        let stall = Stall::Fetch { partition: 3 };
        patience.replaced(stall);
        patience.replaced(stall);
        assert_eq!(patience.interval, LOOK * 4);
        for _ in 0..20 {
            patience.replaced(stall);
        }
        patience.arrived(2);
        assert_eq!(patience.interval, LOOK_RARELY);
        patience.arrived(3);
        assert_eq!(patience.interval, LOOK);
        patience.replaced(stall);
        tokio::time::advance(FORGET * 2).await;
        patience.arrived(2);
        assert_eq!(patience.interval, LOOK);
        // In a lane without messages, getting into the group shows that it helped.
        patience.replaced(stall);
        patience.placed();
        assert_eq!(patience.interval, LOOK * 2);
        patience.replaced(Stall::Join);
        patience.placed();
        assert_eq!(
            patience.interval,
            LOOK * 4,
            "the partition may still be stalled"
        );
        patience.arrived(3);
        patience.replaced(Stall::Join);
        patience.placed();
        assert_eq!(patience.interval, LOOK);
    }
}
