//! The result of a release: the locks that it cleared, and those that it left.
//!
//! A lock that has not expired may have an execution, and so may an expired one while a transaction of
//! the engine is open that began before the expiry. An executor of the engine would run such a job a
//! second time at once. So these locks stay, and the release is to be repeated.

use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use sqlx::Row;
use sqlx::postgres::PgRow;

/// True if a lock that ends at `$until` has no execution: it has expired, and no transaction is open that
/// began before that, or the patience is over. `$1`: the zone, `$2`: the patience.
macro_rules! has_ended {
    ($until:literal) => {
        concat!(
            "(",
            $until,
            " IS NULL OR (",
            $until,
            " < (clock_timestamp() AT TIME ZONE $1) AND (",
            $until,
            " < (clock_timestamp() AT TIME ZONE $1) - $2 OR NOT EXISTS (SELECT FROM ",
            $crate::activity::other_transactions!(),
            " AND a.xact_start < ",
            $until,
            " AT TIME ZONE $1))))"
        )
    };
}
pub(crate) use has_ended;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    /// The number of locks that were cleared.
    pub(crate) released: u64,
    /// The number of locks that stay.
    pub(crate) left: u64,
    /// The end of the last of them, if it is known.
    pub(crate) until: Option<DateTime<Utc>>,
}

impl Released {
    /// Returns the result for a row with the number of left locks and the end of the last one.
    pub(crate) fn of(released: u64, left: &PgRow) -> Result<Self, StoreError> {
        Ok(Self {
            released,
            left: u64::try_from(left.try_get::<i64, _>(0)?).unwrap_or_default(),
            until: left.try_get(1)?,
        })
    }

    /// Returns the number of cleared locks if none is left. `patience` is the time for which a lock
    /// waits for an open transaction after its end.
    ///
    /// # Errors
    /// [`StoreError::Config`] with the time of the next try.
    pub(crate) fn whole(self, patience: Duration) -> Result<u64, StoreError> {
        if self.left == 0 {
            return Ok(self.released);
        }
        let shown = |at: DateTime<Utc>| at.format("%Y-%m-%d %H:%M:%S UTC").to_string();
        let patience = chrono::Duration::from_std(patience).unwrap_or(chrono::Duration::MAX);
        let when = match self.until {
            None => "when they have ended".to_owned(),
            Some(until) => match until.checked_add_signed(patience) {
                None => format!("after {}", shown(until)),
                Some(last) => format!(
                    "after {}, or while a transaction of the engine stays open, after {}",
                    shown(until),
                    shown(last)
                ),
            },
        };
        Err(StoreError::Config(format!(
            "{} locks were released, and {} have not expired or may have an execution that still runs; leave the \
             engine's own executor off, and run the command again {when}",
            self.released, self.left
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_leaves_locks_tells_when_to_try_again() {
        let whole = Released {
            released: 3,
            ..Released::default()
        };
        assert_eq!(whole.whole(Duration::ZERO).ok(), Some(3));
        let said = |until: Option<DateTime<Utc>>| {
            let part = Released {
                left: 2,
                until,
                ..whole
            };
            let refused = part.whole(Duration::from_secs(600));
            refused.expect_err("locks are left").to_string()
        };
        let at = said(DateTime::from_timestamp(1_000_000_000, 0));
        for part in [
            "3 locks were released, and 2 have not expired",
            "after 2001-09-09 01:46:40 UTC",
            "after 2001-09-09 01:56:40 UTC",
        ] {
            assert!(at.contains(part), "{part} in {at}");
        }
        assert!(said(None).contains("run the command again when they have ended"));
        assert!(said(Some(DateTime::<Utc>::MAX_UTC)).contains("after "));
    }
}
