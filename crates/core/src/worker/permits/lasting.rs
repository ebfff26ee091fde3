//! Permits that expire later than any node borrows, and for which jobs wait. A node that lives renews its
//! rows each minute. So one that has not changed for as long as a node may trust it, and as it may cool
//! down, has ended.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::permits::LastingPermit;

/// The lasting permits, by their rows, and since when this node has seen each row as it is.
#[derive(Default)]
pub(in crate::worker) struct LastingPermits {
    seen: HashMap<(String, String), Instant>,
}

impl LastingPermits {
    /// Returns the permits that have ended. Each limit has the time after which its permits have ended if
    /// they have not changed.
    pub(in crate::worker) fn ended(&self, limits: &[(String, Duration)]) -> Vec<LastingPermit> {
        let longest = |limit: &str| limits.iter().find(|(name, _)| name == limit);
        let ended = self.seen.iter().filter(|((limit, _), since)| {
            longest(limit).is_some_and(|(_, longest)| since.elapsed() >= *longest)
        });
        ended
            .map(|((limit, row), _)| LastingPermit {
                limit: limit.clone(),
                row: row.clone(),
            })
            .collect()
    }

    /// Records the permits that a look has found, and forgets the others. Returns the number of those of
    /// `ended` that are gone.
    pub(in crate::worker) fn found(
        &mut self,
        found: Vec<LastingPermit>,
        ended: &[LastingPermit],
    ) -> usize {
        let now = Instant::now();
        let gone = ended.iter().filter(|of| !found.contains(of)).count();
        let found = found.into_iter().map(|of| {
            let of = (of.limit, of.row);
            let since = self.seen.get(&of).copied().unwrap_or(now);
            (of, since)
        });
        self.seen = found.collect();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(row: &str) -> LastingPermit {
        LastingPermit {
            limit: "mail".to_owned(),
            row: row.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_permit_that_nobody_changes_for_a_loan_and_a_cool_down_has_ended() {
        let minute = Duration::from_secs(60);
        let limits = [("mail".to_owned(), minute * 5)];
        let mut lasting = LastingPermits::default();
        for n in 0..5 {
            assert_eq!(lasting.ended(&limits), []);
            // After the clock was set back, living nodes go on renewing.
            let renewed = permit(&format!("a living node, {n}"));
            lasting.found(vec![permit("of no node"), renewed], &[]);
            tokio::time::advance(minute).await;
        }
        assert_eq!(lasting.ended(&limits), [permit("of no node")]);
        assert_eq!(lasting.ended(&[("fax".to_owned(), minute)]), []);
        // A lease names its node, so it stays.
        let ended = lasting.ended(&limits);
        assert_eq!(lasting.found(ended.clone(), &ended), 0);
        assert_eq!(lasting.ended(&limits), ended);
        assert_eq!(lasting.found(Vec::new(), &ended), 1);
        assert_eq!(lasting.ended(&limits), []);
    }
}
