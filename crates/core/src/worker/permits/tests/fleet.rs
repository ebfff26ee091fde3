//! A fleet of books of permits and the rows of one key, by chance: nodes start jobs, lose answers and
//! die. No period of a cool-down has more starts than the size of a rate, and no more jobs have a permit
//! at once than the size of a limit of running jobs.

use std::collections::HashMap;

use super::*;

/// A node borrows nothing ahead of the smaller one.
const SIZES: [i32; 2] = [5, 40];
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
        let free = (of.size - used - cool - keep).max(0);
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

/// What became of a fleet.
struct Ran {
    /// The instants of all starts.
    starts: Vec<Instant>,
    /// The largest number of jobs that had a permit at once.
    most: usize,
}

/// Runs a fleet for some steps.
async fn run(seed: u64, terms: Terms) -> Ran {
    let mut chance = Chance(seed * 7_919 + 1);
    // Jobs of a larger limit come and end by several.
    let many = terms.size / 5;
    // Most nodes are heard of before their rows expire.
    let longest_step = if terms.is_rate() {
        terms.cool_down / 3
    } else {
        LEASE / 9
    };
    let mut rows = Rows::default();
    let mut nodes: Vec<(usize, Arc<Permits>)> = (0..3).map(|id| (id, Arc::default())).collect();
    let mut held: Vec<(usize, Permit)> = Vec::new();
    let mut asked = Vec::new();
    let mut ran = Ran {
        starts: Vec::new(),
        most: 0,
    };
    for step in 0..400 {
        let at = chance.below(3) as usize;
        let (node, permits) = nodes[at].clone();
        match chance.below(12) {
            0..=3 => {
                for _ in 0..many {
                    match permits.ask(key(), terms, asking()) {
                        Ok(permit) => held.push((node, permit)),
                        Err(answer) => asked.push(answer),
                    }
                }
            }
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
                for _ in 0..many.min(held.len() as i32) {
                    let (_, permit) = held.swap_remove(chance.below(held.len() as u64) as usize);
                    if permit.may_start() && chance.below(4) > 0 {
                        ran.starts.push(Instant::now());
                        permit.started();
                    }
                }
            }
            9 if chance.below(8) == 0 => {
                // The node dies. Another one starts in its place.
                held.retain(|(owner, _)| *owner != node);
                nodes[at] = (3 + step, Arc::default());
            }
            _ => {
                let step = chance.below(longest_step.as_millis() as u64);
                tokio::time::advance(Duration::from_millis(step)).await;
                rows.lead();
                // The leases of jobs end no later than the row of their node.
                held.retain(|(owner, _)| rows.nodes.contains_key(owner));
            }
        }
        ran.most = ran.most.max(held.len());
    }
    ran
}

#[tokio::test(start_paused = true)]
async fn no_period_has_more_starts_than_the_size_while_nodes_die_and_answers_are_lost() {
    for size in SIZES {
        let mut all = 0;
        for seconds in [1, 20, 3_600] {
            let terms = rate(size, seconds);
            for seed in 0..60 {
                let starts = run(seed, terms).await.starts;
                for window in starts.windows(size as usize + 1) {
                    let apart = window[size as usize] - window[0];
                    assert!(
                        apart >= terms.cool_down,
                        "seed {seed}: {apart:?} of {terms:?}"
                    );
                }
                all += starts.len();
            }
        }
        assert!(all > 3_000, "only {all} jobs started");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_jobs_run_at_once_than_the_size_while_nodes_die_and_answers_are_lost() {
    for size in SIZES {
        let (mut all, mut most) = (0, 0);
        for seed in 0..180 {
            let ran = run(seed, running(size)).await;
            assert!(
                ran.most <= size as usize,
                "seed {seed}: {} of {size}",
                ran.most
            );
            all += ran.starts.len();
            most = most.max(ran.most);
        }
        assert!(8 * most >= 7 * size as usize, "at most {most} of {size}");
        assert!(all > 3_000, "only {all} jobs started");
    }
}
