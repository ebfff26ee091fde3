//! The number of addresses of an engine that are away, for its metrics.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::meter::Meter;

/// The addresses whose breaker is open.
#[derive(Debug)]
pub(super) struct Away {
    meter: Meter,
    addresses: usize,
    open: AtomicUsize,
}

impl Away {
    pub(super) fn new(meter: Meter, addresses: usize) -> Self {
        meter.away(0, addresses);
        Self {
            meter,
            addresses,
            open: AtomicUsize::new(0),
        }
    }

    /// Counts an address whose breaker has opened.
    pub(super) fn opened(&self) {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.meter.away(open, self.addresses);
    }

    /// Counts an address whose breaker has closed.
    pub(super) fn closed(&self) {
        let open = self.open.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
        self.meter.away(open, self.addresses);
    }
}
