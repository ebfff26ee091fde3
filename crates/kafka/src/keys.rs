//! The key under which a hint is published; it determines the partition.
//!
//! The key of an exclusive job's hint is the process instance, so hints of an instance share a
//! partition and keep their order. Other hints may go to any partition. A key for each hint would
//! scatter them, and each message would cost a request, at the producer and at the broker
//! (librdkafka puts one partition into a request, and has five requests under way). So hints that
//! are published within a short time form a run and share the key of the first one. A run has at
//! most as many hints as a message packs. The next run gets another key. So every partition gets
//! its share, and at low load each hint has its own key.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jobwire_core::Hint;
use tokio::time::Instant;

/// Maximum duration of a run.
const RUN: Duration = Duration::from_millis(10);

/// See the [module](self).
pub(crate) struct Keys {
    /// Maximum number of hints in a run.
    most: usize,
    run: Mutex<Option<Run>>,
}

struct Run {
    key: String,
    left: usize,
    until: Instant,
}

impl Keys {
    /// Creates keys with runs of at most `most` hints.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            run: Mutex::default(),
        }
    }

    /// Returns the hints, each with its key.
    pub(crate) fn of(
        &self,
        hints: Vec<Hint>,
        now: Instant,
    ) -> impl Iterator<Item = (String, Hint)> + use<'_> {
        // A poisoned lock is harmless: a run is never left half changed.
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        hints.into_iter().map(move |hint| {
            let key = match &hint.instance {
                Some(instance) => instance.clone(),
                None => self.next(&mut run, &hint, now),
            };
            (key, hint)
        })
    }

    fn next(&self, run: &mut Option<Run>, hint: &Hint, now: Instant) -> String {
        let goes_on = run.take().filter(|run| run.left > 0 && now < run.until);
        let run = run.insert(goes_on.unwrap_or_else(|| Run {
            key: hint.id.to_string(),
            left: self.most,
            until: now + RUN,
        }));
        run.left = run.left.saturating_sub(1);
        run.key.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jobwire_core::JobId;

    fn plain(count: usize) -> Vec<Hint> {
        let ids = std::iter::repeat_with(JobId::generate);
        ids.take(count).map(Hint::new).collect()
    }

    fn keys(keys: &Keys, hints: &[Hint], now: Instant) -> Vec<String> {
        keys.of(hints.to_vec(), now).map(|(key, _)| key).collect()
    }

    #[test]
    fn hints_of_an_instance_have_its_name_for_key() {
        let all = Keys::new(16);
        let mut hints = plain(3);
        hints[1].instance = Some("order-17".to_owned());
        let of_first = hints[0].id.to_string();
        let now = Instant::now();
        assert_eq!(keys(&all, &hints, now), [&*of_first, "order-17", &of_first]);
    }

    #[test]
    fn a_hint_is_keyed_by_its_instance_else_by_its_id() {
        let id = "019A9E7C-1F0B-7C43-9C3E-5A5F3F6F2D11".parse().unwrap();
        let (all, now, mut hint) = (Keys::new(16), Instant::now(), Hint::new(id));
        let own = ["019a9e7c-1f0b-7c43-9c3e-5a5f3f6f2d11"];
        assert_eq!(keys(&all, &[hint.clone()], now), own);
        hint.instance = Some("order-17".to_owned());
        assert_eq!(keys(&all, &[hint], now), ["order-17"]);
    }

    #[test]
    fn others_share_the_key_of_the_first_of_their_run() {
        let all = Keys::new(4);
        let (hints, now) = (plain(10), Instant::now());
        let shared = keys(&all, &hints, now);
        for (at, key) in shared.iter().enumerate() {
            assert_eq!(*key, hints[at / 4 * 4].id.to_string(), "{at}");
        }
        // The third run has room for two more.
        let later = plain(3);
        let expected = [&hints[8], &hints[8], &later[2]].map(|hint| hint.id.to_string());
        assert_eq!(keys(&all, &later, now), expected);
    }

    #[test]
    fn at_low_load_each_has_its_own_key() {
        let (all, mut now) = (Keys::new(16), Instant::now());
        for hint in plain(5) {
            let own = [hint.id.to_string()];
            assert_eq!(keys(&all, &[hint], now), own);
            now += RUN;
        }
    }
}
