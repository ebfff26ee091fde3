//! I9: every hint that a node received from its broker was decided or returned.
//!
//! A history has no deliveries; the nodes count them. A dead node's account is lost. The broker
//! delivers its undecided hints again, and other nodes count them.

/// A node's counts since its start, over all lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintAccount {
    /// Hints that it received from the broker.
    pub received: u64,
    /// Hints whose job was locked, or refused for good.
    pub decided: u64,
    /// Hints that went back to the broker.
    pub returned: u64,
}

impl HintAccount {
    /// Reads the account from a page of metrics.
    #[must_use]
    pub fn read(page: &str) -> HintAccount {
        HintAccount {
            received: total(page, jobwire_core::telemetry::metrics::HINTS_RECEIVED),
            decided: total(page, jobwire_core::telemetry::metrics::HINTS_DECIDED),
            returned: total(page, jobwire_core::telemetry::metrics::HINTS_RETURNED),
        }
    }

    /// Returns whether no hint is missing or counted twice. Holds while no hint is under way.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.received == self.decided + self.returned
    }
}

/// Returns the sum of a counter or a gauge over its labels.
#[must_use]
pub fn total(page: &str, name: &str) -> u64 {
    let samples = page.lines().filter_map(|line| line.strip_prefix(name));
    samples
        .filter(|rest| rest.starts_with(['{', ' ']))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_the_sum_over_the_lanes() {
        let page = "# TYPE jobwire_hints_received_total counter\n\
                    jobwire_hints_received_total{lane=\"a\"} 7\n\
                    jobwire_hints_received_total{lane=\"b b\"} 3\n\
                    jobwire_hints_decided_total{lane=\"a\"} 6\n\
                    jobwire_hints_decided_totals 99\n\
                    jobwire_hints_returned_total{lane=\"b b\"} 3\n";
        let mut account = HintAccount::read(page);
        let expected = HintAccount {
            received: 10,
            decided: 6,
            returned: 3,
        };
        assert_eq!(account, expected);
        assert!(!account.is_balanced());
        account.decided += 1;
        assert!(account.is_balanced());
    }
}
