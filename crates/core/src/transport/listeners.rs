//! The listeners of one process for control messages.

use tokio::sync::broadcast;

use super::{CONTROL_BUFFER, Control};
use crate::telemetry::log_throttle::LogThrottle;

/// Distributes control messages to the listeners of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Listeners(broadcast::Sender<Control>);

impl Default for Listeners {
    fn default() -> Self {
        Self(broadcast::Sender::new(CONTROL_BUFFER))
    }
}

impl Listeners {
    /// Returns a new listener. A slow listener loses the oldest messages.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<Control> {
        self.0.subscribe()
    }

    /// Passes a message on. Returns whether this process has a listener.
    pub fn tell(&self, control: Control) -> bool {
        self.0.send(control).is_ok()
    }

    /// Tells the listeners that messages of other processes may have been lost.
    pub fn missed(&self) {
        self.tell(Control::Missed);
    }

    /// Reads a message of another process and passes it on. Drops an unreadable message, with a
    /// throttled log line.
    pub fn read(&self, message: &[u8], unreadable: &mut LogThrottle) {
        match Control::read(message) {
            Ok(control) => {
                self.tell(control);
            }
            Err(problem) => {
                if let Some(more) = unreadable.now() {
                    tracing::warn!(%problem, more, "dropped an unreadable control message");
                }
            }
        }
    }
}
