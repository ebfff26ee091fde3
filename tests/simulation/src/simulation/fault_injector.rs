//! The current chances of faults of database, broker and network.

use std::sync::{Mutex, PoisonError};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Chances, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FaultRates {
    /// A statement fails before it takes effect.
    pub(super) fails: u32,
    /// A statement takes effect and its answer is lost.
    pub(super) answer_lost: u32,
    /// A statement takes effect long after its caller has given up.
    pub(super) late: u32,
    /// A statement is slow, perhaps longer than a lease.
    pub(super) slow: u32,
    /// A row is locked for a moment by another transaction.
    pub(super) busy: u32,
    /// A message is lost.
    pub(super) lost: u32,
    /// A message comes twice.
    pub(super) doubled: u32,
    /// A message overtakes others.
    pub(super) reordered: u32,
    /// A settlement is lost, and the message is delivered again.
    pub(super) unsettled: u32,
    /// A confirm is lost.
    pub(super) unconfirmed: u32,
    /// The broker is away.
    pub(super) broker_away: bool,
}

/// The current chances, and the source of random numbers.
#[derive(Debug)]
pub(super) struct FaultInjector {
    fault_rates: Mutex<FaultRates>,
    dice: Mutex<SmallRng>,
}

impl FaultInjector {
    pub(super) fn new(seed: u64) -> FaultInjector {
        FaultInjector {
            fault_rates: Mutex::default(),
            dice: Mutex::new(SmallRng::seed_from_u64(seed)),
        }
    }

    pub(super) fn now(&self) -> FaultRates {
        *self
            .fault_rates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut FaultRates)) {
        change(
            &mut self
                .fault_rates
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Returns a random number from 0 to `most`, inclusive.
    pub(super) fn up_to(&self, most: u64) -> u64 {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        dice.random_range(0..=most)
    }

    /// Returns true with this chance, in thousandths.
    pub(super) fn strikes(&self, thousandths: u32) -> bool {
        thousandths > 0 && self.up_to(999) < u64::from(thousandths)
    }
}
