//! SIGTERM and Ctrl-C.

use crate::error::Error;

/// Hears the signals that ask the program to stop. Made first thing, so that none is missed.
pub struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Start to listen.
    ///
    /// # Errors
    /// Where the system does not let us.
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

    /// Wait for the next one.
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
