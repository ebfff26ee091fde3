//! Keys of unique jobs.

use std::time::Duration;

use crate::job::invalid_job::InvalidJob;

/// The maximum size of a unique key, in bytes.
pub const MAX_UNIQUE_KEY_BYTES: usize = 512;
const MIN_PERIOD: Duration = Duration::from_secs(1);
const MAX_PERIOD: Duration = Duration::from_secs(100 * 36_525 * 864);

/// A key that at most one job has at a time. While a job has it, the creation of another one
/// creates nothing and returns the id of the job that has it.
///
/// ```
/// use std::time::Duration;
/// use jobwire_core::{NewJob, UniqueKey};
///
/// // One pending synchronisation of this customer.
/// let sync = NewJob::of("sync", &17).unique("customer-17");
/// // One reminder a day, even if the first one is done.
/// let daily = UniqueKey::new("customer-17").once_per(Duration::from_secs(86_400));
/// let remind = NewJob::of("remind", &17).unique(daily);
/// ```
///
/// | option | meaning | default |
/// | --- | --- | --- |
/// | [`global`](Self::global) | all types and tenants share the key | jobs of the same type and tenant share it |
/// | [`once_per`](Self::once_per) | at most one job in each period, whatever becomes of it | a job has the key while it is pending |
/// | [`and_dead_letters`](Self::and_dead_letters) | a dead letter has its key, too | it does not |
///
/// A job is pending from its creation to its completion or deletion: while it is executable or
/// running, waits for its date or for a retry, or is suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniqueKey {
    pub(crate) key: String,
    pub(crate) is_global: bool,
    pub(crate) period: Option<Duration>,
    pub(crate) dead_letters: bool,
}

impl UniqueKey {
    /// Creates a key of 1 to 512 bytes, which jobs of the same type and tenant share.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            is_global: false,
            period: None,
            dead_letters: false,
        }
    }

    /// Lets jobs of all types and tenants share the key.
    #[must_use]
    pub fn global(mut self) -> Self {
        self.is_global = true;
        self
    }

    /// Allows one job in each period of this length, from 1 second to 100 years. The periods begin
    /// at fixed moments, counted from 1970 by the database's clock: those of an hour at full hours
    /// (UTC). A job has its key until the end of the period, even if it is done or deleted before.
    /// After the end it has it no longer, even if it is still pending.
    #[must_use]
    pub fn once_per(mut self, period: Duration) -> Self {
        self.period = Some(period);
        self
    }

    /// Lets a job have its key while it is a dead letter, too.
    #[must_use]
    pub fn and_dead_letters(mut self) -> Self {
        self.dead_letters = true;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidJob> {
        if self.key.is_empty() {
            return Err(InvalidJob::new(
                "unique_key",
                "is empty",
                "give a text that names what the job is for",
            ));
        }
        if self.key.len() > MAX_UNIQUE_KEY_BYTES {
            return Err(InvalidJob::new(
                "unique_key",
                format!(
                    "has {} bytes, more than {MAX_UNIQUE_KEY_BYTES}",
                    self.key.len()
                ),
                "shorten it",
            ));
        }
        if self.key.contains('\0') {
            return Err(InvalidJob::new(
                "unique_key",
                "contains a NUL character",
                "leave it out",
            ));
        }
        let fits = |period| (MIN_PERIOD..=MAX_PERIOD).contains(&period);
        if !self.period.is_none_or(fits) {
            return Err(InvalidJob::new(
                "unique_period",
                "is not between 1 second and 100 years",
                "give for example `1h`",
            ));
        }
        Ok(())
    }

    /// Returns the length of the period in microseconds.
    pub(crate) fn period_micros(&self) -> Option<i64> {
        let micros = |period: Duration| i64::try_from(period.as_micros()).unwrap_or(i64::MAX);
        self.period.map(micros)
    }
}

impl<T: Into<String>> From<T> for UniqueKey {
    fn from(key: T) -> Self {
        Self::new(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_can_not_be_is_refused() {
        let refused = |key: UniqueKey| key.validate().unwrap_err().field;
        assert_eq!(refused(UniqueKey::new("")), "unique_key");
        assert_eq!(refused(UniqueKey::new("k".repeat(513))), "unique_key");
        assert_eq!(refused(UniqueKey::new("a\0b")), "unique_key");
        let of = |period| UniqueKey::new("k").once_per(period);
        assert_eq!(refused(of(Duration::from_millis(999))), "unique_period");
        assert_eq!(
            refused(of(MAX_PERIOD + Duration::from_secs(1))),
            "unique_period"
        );
        for good in [
            UniqueKey::new("k".repeat(512)),
            of(MIN_PERIOD),
            of(MAX_PERIOD),
        ] {
            assert_eq!(good.validate(), Ok(()));
        }
    }
}
