//! A fleet of books of permits and the rows of one key, by chance: nodes start jobs, lose answers and
//! die, and no period of a cool-down has more starts than the size.

use std::collections::HashMap;

use super::*;

const SIZE: i32 = 5;
const LEASE: Duration = Duration::from_secs(30);

/// A source of chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The rows of the key: the number of permits, and when the row expires.
#[derive(Default)]
struct Rows {
    nodes: HashMap<usize, (i32, Instant)>,
    cooling: Vec<(i32, Instant)>,
}

impl Rows {
    /// Does what the store does with the request of a node, and returns the answer.
    fn exchange(&mut self, node: usize, of: &KeyRequest, contended: bool) -> KeyAnswer {
        let now = Instant::now();
        let mine = self.nodes.get(&node).map_or(0, |row| row.0);
        let keep = of.keep.min(mine);
        let mut taken = mine - keep;
        let mut cooling = of.cooling.clone();
        cooling.sort_by_key(|of| std::cmp::Reverse(of.rest));
        for one in cooling {
            let number = one.number.min(taken);
            taken -= number;
            self.cooling.push((number, now + one.rest));
        }
        let of_others = self.nodes.iter().filter(|(other, _)| **other != node);
        let used: i32 = of_others.map(|(_, row)| row.0).sum();
        let cool: i32 = self.cooling.iter().map(|row| row.0).sum();
        let free = (SIZE - used - cool - keep).max(0);
        let granted: Vec<JobId> = of.asking.iter().map(|job| job.held.id).collect();
        let granted = granted[..granted.len().min(free as usize)].to_vec();
        let spare = if contended { 0 } else { of.spare };
        let number = keep + granted.len() as i32 + spare.min(free - granted.len() as i32);
        self.nodes
            .insert(node, (number, now + LEASE + of.cool_down));
        KeyAnswer {
            key: of.key.clone(),
            number,
            granted,
            contended,
        }
    }

    /// Frees the permits that have expired.
    fn lead(&mut self) {
        let now = Instant::now();
        self.nodes.retain(|_, row| row.1 > now);
        self.cooling.retain(|row| row.1 > now);
    }
}

/// Runs a fleet for some steps. Returns the instants of all starts.
async fn run(seed: u64, cool_down: Duration) -> Vec<Instant> {
    let mut chance = Chance(seed * 7_919 + 1);
    let terms = Terms {
        size: SIZE,
        cool_down,
    };
    let mut rows = Rows::default();
    let mut nodes: Vec<(usize, Arc<Permits>)> = (0..3).map(|id| (id, Arc::default())).collect();
    let mut held: Vec<(usize, Permit)> = Vec::new();
    let mut asked = Vec::new();
    let mut starts = Vec::new();
    for step in 0..400 {
        let at = chance.below(3) as usize;
        let (node, permits) = nodes[at].clone();
        match chance.below(12) {
            0..=3 => match permits.ask(key(), terms, asking()) {
                Ok(permit) => held.push((node, permit)),
                Err(answer) => asked.push(answer),
            },
            4..=6 => {
                let extents = [Extent::Due, Extent::All, Extent::Back];
                let extent = extents[chance.below(3) as usize];
                let until = TrustedUntil::after(LEASE);
                let round = permits.begin(extent, Vec::new());
                for of in &round.keys {
                    let fate = chance.below(5);
                    if fate == 0 {
                        permits.failed(&round.keys);
                        continue;
                    }
                    let answer = rows.exchange(node, of, chance.below(2) == 0);
                    if fate == 1 {
                        // The answer is lost.
                        permits.failed(&round.keys);
                        continue;
                    }
                    permits.answered(&answer, until);
                    for _ in &answer.granted {
                        held.push((node, Permit::new(permits.clone(), key(), terms)));
                    }
                }
            }
            7..=8 if !held.is_empty() => {
                let (_, permit) = held.swap_remove(chance.below(held.len() as u64) as usize);
                if permit.may_start() && chance.below(4) > 0 {
                    starts.push(Instant::now());
                    permit.started();
                }
            }
            9 if chance.below(8) == 0 => {
                // The node dies. Another one starts in its place.
                held.retain(|(owner, _)| *owner != node);
                nodes[at] = (3 + step, Arc::default());
            }
            _ => {
                let step = chance.below(cool_down.as_millis() as u64 / 3);
                tokio::time::advance(Duration::from_millis(step)).await;
                rows.lead();
            }
        }
    }
    starts
}

#[tokio::test(start_paused = true)]
async fn no_period_has_more_starts_than_the_size_while_nodes_die_and_answers_are_lost() {
    let mut all = 0;
    for cool_down in [1, 20, 3_600].map(Duration::from_secs) {
        for seed in 0..60 {
            let starts = run(seed, cool_down).await;
            for window in starts.windows(SIZE as usize + 1) {
                let apart = window[SIZE as usize] - window[0];
                assert!(
                    apart >= cool_down,
                    "seed {seed}: {apart:?} of {cool_down:?}"
                );
            }
            all += starts.len();
        }
    }
    assert!(all > 3_000, "only {all} jobs started");
}
