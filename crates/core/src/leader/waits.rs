//! The waits of batches and schedules that failed: each is tried again after a time that doubles with
//! each failure. They are kept in memory, so a new leader begins with short ones.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// See the [module](self).
pub(super) struct Waits<K> {
    waits: HashMap<K, Wait>,
    first: Duration,
    longest: Duration,
    /// Maximum number of waits. Those beyond are tried with each look.
    most: usize,
    /// The number of the look.
    look: u64,
}

struct Wait {
    failures: u32,
    until: Instant,
    /// The last look that has found the key.
    look: u64,
}

impl<K: Clone + Eq + Hash + Ord> Waits<K> {
    /// Creates waits that grow from `first` to `longest`, at most `most` at once.
    pub(super) fn new(first: Duration, longest: Duration, most: usize) -> Self {
        Self {
            waits: HashMap::new(),
            first,
            longest,
            most,
            look: 0,
        }
    }

    /// Begins a look at all keys.
    pub(super) fn begin(&mut self) {
        self.look += 1;
    }

    /// Ends the look: forgets the keys that it has not found.
    pub(super) fn end(&mut self) {
        let look = self.look;
        self.waits.retain(|_, wait| wait.look == look);
    }

    /// Records that the look has found this key. Returns the end of its wait, if it has one.
    pub(super) fn found(&mut self, key: &K) -> Option<Instant> {
        let wait = self.waits.get_mut(key)?;
        wait.look = self.look;
        Some(wait.until)
    }

    /// Returns whether the wait of this key is one after a failure.
    pub(super) fn has_failed(&self, key: &K) -> bool {
        self.waits.get(key).is_some_and(|wait| wait.failures > 0)
    }

    /// Begins the next wait of a key that failed.
    pub(super) fn fails(&mut self, key: K) {
        let (first, longest) = (self.first, self.longest);
        if let Some(wait) = self.entry(key) {
            let doubled = first.saturating_mul(1 << wait.failures.min(16));
            wait.until = Instant::now() + doubled.min(longest);
            wait.failures = wait.failures.saturating_add(1);
        }
    }

    /// Begins a first wait of a key that did not fail, and is not done yet.
    pub(super) fn goes_on_later(&mut self, key: K) {
        let until = Instant::now() + self.first;
        if let Some(wait) = self.entry(key) {
            wait.until = until;
            wait.failures = 0;
        }
    }

    fn entry(&mut self, key: K) -> Option<&mut Wait> {
        let has_room = self.waits.len() < self.most || self.waits.contains_key(&key);
        let look = self.look;
        has_room.then(|| {
            let wait = self.waits.entry(key).or_insert(Wait {
                failures: 0,
                until: Instant::now(),
                look,
            });
            wait.look = look;
            wait
        })
    }

    /// Forgets a key that has succeeded.
    pub(super) fn forget(&mut self, key: &K) {
        self.waits.remove(key);
    }

    /// Returns the keys whose waits are over, the longest first.
    pub(super) fn due(&self) -> Vec<K> {
        let now = Instant::now();
        let due = self.waits.iter().filter(|(_, wait)| wait.until <= now);
        let mut due: Vec<(Instant, K)> = due.map(|(key, wait)| (wait.until, key.clone())).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, key)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_wait_of_a_key_grows_with_its_failures() {
        let mut waits = Waits::new(SECOND * 10, SECOND * 600, 100);
        waits.begin();
        assert_eq!(waits.found(&'a'), None);
        for wait in [10, 20, 40, 80, 160, 320, 600, 600] {
            waits.fails('a');
            tokio::time::advance(SECOND * wait - Duration::from_millis(1)).await;
            waits.begin();
            assert!(waits.found(&'a').is_some() && waits.found(&'b').is_none());
            assert!(waits.due().is_empty(), "{wait}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(waits.due(), ['a'], "{wait}");
        }
        waits.goes_on_later('a');
        assert_eq!(waits.found(&'a'), Some(Instant::now() + SECOND * 10));
        waits.fails('a');
        assert_eq!(waits.found(&'a'), Some(Instant::now() + SECOND * 10));
        waits.forget(&'a');
        assert_eq!(waits.found(&'a'), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_does_not_find_a_key_forgets_it() {
        let mut waits = Waits::new(SECOND, SECOND, 100);
        waits.begin();
        waits.fails('a');
        waits.fails('b');
        tokio::time::advance(SECOND).await;
        waits.begin();
        waits.found(&'a');
        assert_eq!(waits.due(), ['a', 'b'], "the look has not ended");
        waits.end();
        assert_eq!(waits.due(), ['a']);
        assert!(waits.found(&'b').is_none() && waits.found(&'a').is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_waits_are_bounded() {
        let mut waits = Waits::new(SECOND, SECOND * 9, 2);
        for key in ['a', 'b', 'c', 'a'] {
            waits.fails(key);
        }
        assert_eq!(waits.waits.len(), 2);
        assert_eq!(waits.found(&'a'), Some(Instant::now() + SECOND * 2));
    }
}
