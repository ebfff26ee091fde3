//! SIGTERM and Ctrl-C.

use crate::error::Error;

/// Receives the signals that ask the program to stop. It must be created first, so that no signal
/// is missed.
pub struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Starts to listen for signals.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn listen() -> Result<Self, Error> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let hear = |kind| signal(kind).map_err(Error::io("can't listen for signals"));
            Ok(Self {
                terminate: hear(SignalKind::terminate())?,
                interrupt: hear(SignalKind::interrupt())?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    }
}
