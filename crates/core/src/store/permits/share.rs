//! The arithmetic of permits: what a request for one key gets. Both databases use it, each inside
//! the transaction that has locked the key.

use std::collections::{HashMap, HashSet};

use crate::job::JobId;
use crate::store::permits::cooling::{Cooling, taken_over};
use crate::store::permits::{Asking, COUNTED, KeyRequest};

/// The state of a key under its lock.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct Standing {
    /// The permits of other nodes.
    pub(in crate::store) others: i64,
    /// The permits of this node, as the database knows them.
    pub(in crate::store) mine: i64,
    /// The woken jobs on their way, without those that ask now.
    pub(in crate::store) reserved: i64,
    /// The waiting jobs, without those that ask now: [`COUNTED`] at most.
    pub(in crate::store) waiting: i64,
}

/// The share of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Share {
    /// The permits of the node from now on.
    pub(in crate::store) number: i32,
    /// The jobs that get a permit.
    pub(in crate::store) granted: Vec<JobId>,
    /// The permits that cool down and that the database keeps from now on.
    pub(in crate::store) cooling: Vec<Cooling>,
    /// The number of waiting jobs to wake.
    pub(in crate::store) wake: i32,
    /// Whether jobs of the key still wait.
    pub(in crate::store) contended: bool,
}

/// Returns the asking jobs in the order in which they get permits: first those that were woken. The
/// others follow in creation order or, if the limit is fair, one of each key after the other.
fn in_order<'a>(asking: &'a [Asking], woken: &HashSet<JobId>) -> Vec<&'a Asking> {
    let mut jobs: Vec<&Asking> = asking.iter().collect();
    jobs.sort_by_key(|job| job.seq);
    let mut turns: HashMap<&str, u32> = HashMap::new();
    let mut placed = Vec::with_capacity(jobs.len());
    for job in jobs {
        let turn = job.fair_key.as_deref().map(|key| {
            let turn = turns.entry(key).or_default();
            *turn += 1;
            *turn
        });
        placed.push(((!woken.contains(&job.held.id), turn), job));
    }
    // The sort keeps the creation order inside a turn.
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().map(|(_, job)| job).collect()
}

/// Divides the free permits of a key: first to asking jobs that were woken, then to waiting jobs,
/// then to the other asking jobs. The rest may be borrowed to spare.
pub(in crate::store) fn share(
    request: &KeyRequest,
    standing: &Standing,
    woken: &HashSet<JobId>,
) -> Share {
    let keep = i64::from(request.keep).min(standing.mine);
    // A repeated request hands nothing over that the first one did.
    let cooling = taken_over(&request.cooling, standing.mine - keep);
    let cool: i64 = cooling.iter().map(|of| i64::from(of.number)).sum();
    let mut free = (i64::from(request.size) - standing.others - keep - cool).max(0);
    let asking = in_order(&request.asking, woken);
    let woken_here = asking.partition_point(|job| woken.contains(&job.held.id));
    let mut granted = Vec::new();
    let mut give = |jobs: &[&Asking], free: &mut i64, among: i64| {
        let count = usize::try_from(among).unwrap_or(0).min(jobs.len());
        granted.extend(jobs.iter().take(count).map(|job| job.held.id));
        *free -= i64::try_from(count).unwrap_or(0);
    };
    let (first, later) = asking.split_at(woken_here);
    let all = free;
    give(first, &mut free, all);
    free = (free - standing.reserved).max(0);
    let wake = free.min(standing.waiting);
    free -= wake;
    let all = free;
    give(later, &mut free, all);
    // Beyond the number that is counted, more jobs may wait.
    let may_be_more = standing.waiting >= COUNTED;
    let contended = standing.waiting > wake || may_be_more || granted.len() < asking.len();
    let spare = if contended {
        0
    } else {
        free.min(i64::from(request.spare))
    };
    let number = keep + i64::try_from(granted.len()).unwrap_or(0) + spare;
    let small = |number: i64| i32::try_from(number).unwrap_or(i32::MAX);
    Share {
        number: small(number),
        granted,
        cooling,
        wake: small(wake),
        contended,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::{Fence, LockToken};
    use crate::store::permits::PermitKey;

    fn asking(seq: i64) -> Asking {
        Asking {
            held: LockToken {
                id: JobId::generate(),
                fence: Fence(seq),
                instance: None,
            },
            job_type: "mail".to_owned(),
            seq,
            fair_key: None,
        }
    }

    fn request(size: i32, keep: i32, spare: i32, jobs: i64) -> KeyRequest {
        KeyRequest {
            key: PermitKey {
                limit: "mail".to_owned(),
                key: String::new(),
            },
            size,
            keep,
            spare,
            cool_down: Duration::ZERO,
            cooling: Vec::new(),
            asking: (0..jobs).map(asking).collect(),
        }
    }

    fn ids(request: &KeyRequest) -> Vec<JobId> {
        request.asking.iter().map(|job| job.held.id).collect()
    }

    #[test]
    fn free_permits_go_to_jobs_in_creation_order_and_what_is_left_is_spare() {
        let none = HashSet::new();
        let few = request(10, 2, 4, 3);
        let standing = Standing {
            mine: 2,
            ..Standing::default()
        };
        let got = share(&few, &standing, &none);
        assert_eq!((got.number, got.wake, got.contended), (9, 0, false));
        assert_eq!(got.granted, ids(&few));

        let many = request(10, 2, 4, 20);
        let got = share(&many, &standing, &none);
        assert_eq!((got.number, got.contended), (10, true));
        assert_eq!(got.granted, ids(&many)[..8]);
    }

    #[test]
    fn a_waiting_job_goes_before_one_that_comes_and_a_woken_one_before_all() {
        let mut of = request(3, 0, 3, 2);
        let woken: HashSet<JobId> = [of.asking[1].held.id].into();
        of.asking.reverse();
        let standing = Standing {
            waiting: 5,
            ..Standing::default()
        };
        let got = share(&of, &standing, &woken);
        assert_eq!(got.granted, Vec::from_iter(woken));
        assert_eq!((got.number, got.wake, got.contended), (1, 2, true));
    }

    #[test]
    fn free_permits_of_a_fair_limit_go_to_its_keys_in_turn() {
        let mut of = request(4, 0, 0, 6);
        for (job, key) in of.asking.iter_mut().zip(["a", "a", "a", "a", "b", "c"]) {
            job.fair_key = Some(key.to_owned());
        }
        let ids = ids(&of);
        of.asking.reverse();
        let got = share(&of, &Standing::default(), &HashSet::new());
        assert_eq!(got.granted, [ids[0], ids[4], ids[5], ids[1]]);
        let woken = [ids[3]].into();
        let got = share(&of, &Standing::default(), &woken);
        assert_eq!(got.granted, [ids[3], ids[0], ids[4], ids[5]]);
    }

    #[test]
    fn a_permit_is_reserved_for_a_woken_job_that_is_on_its_way() {
        let of = request(2, 0, 2, 2);
        let standing = Standing {
            reserved: 1,
            ..Standing::default()
        };
        let got = share(&of, &standing, &HashSet::new());
        assert_eq!((got.number, got.granted.len(), got.wake), (1, 1, 0));
        assert!(got.contended);
    }

    #[test]
    fn more_jobs_may_wait_than_are_counted() {
        for (waiting, contended) in [(COUNTED - 1, false), (COUNTED, true)] {
            let standing = Standing {
                waiting,
                ..Standing::default()
            };
            let got = share(&request(2_000, 0, 250, 0), &standing, &HashSet::new());
            assert_eq!(i64::from(got.wake), waiting);
            assert_eq!(got.contended, contended);
            assert_eq!(got.number, if contended { 0 } else { 250 }, "to spare");
        }
    }

    /// Its row has expired meanwhile, and another node has the permits.
    #[test]
    fn a_node_keeps_no_more_than_the_database_knows_of() {
        let of = request(2, 2, 2, 1);
        let standing = Standing {
            others: 2,
            mine: 0,
            ..Standing::default()
        };
        let got = share(&of, &standing, &HashSet::new());
        assert_eq!((got.number, got.granted.len()), (0, 0));
    }

    #[test]
    fn a_permit_that_cools_down_in_the_database_is_not_free() {
        let rest = Duration::from_secs(3);
        let mut of = request(5, 1, 0, 4);
        of.cooling = vec![Cooling { number: 2, rest }];
        let mut standing = Standing {
            mine: 4,
            ..Standing::default()
        };
        let got = share(&of, &standing, &HashSet::new());
        assert_eq!(got.cooling, of.cooling);
        assert_eq!((got.number, got.granted.len(), got.contended), (3, 2, true));
        // The same request again: the database has the two in a row of their own.
        (standing.mine, standing.others) = (1, 2);
        let got = share(&of, &standing, &HashSet::new());
        assert_eq!((got.cooling.len(), got.number), (0, 3));
    }

    /// Every state that the numbers can describe.
    #[test]
    fn the_sum_never_exceeds_the_size() {
        for size in 1..5 {
            for others in 0..=size {
                for mine in 0..=size - others {
                    for keep in 0..=size {
                        for (spare, jobs) in [(0, 0), (0, 3), (4, 0), (4, 3), (1, 6)] {
                            for (reserved, waiting) in [(0, 0), (1, 0), (0, 2), (3, 3)] {
                                let mut of = request(size, keep, spare, jobs);
                                let rest = Duration::from_secs(1);
                                let number = spare;
                                of.cooling.push(Cooling { number, rest });
                                let standing = Standing {
                                    others: others.into(),
                                    mine: mine.into(),
                                    reserved,
                                    waiting,
                                };
                                let woken = of.asking.first().map(|job| job.held.id);
                                let got = share(&of, &standing, &woken.into_iter().collect());
                                let cool: i32 = got.cooling.iter().map(|of| of.number).sum();
                                let sum = got.number + others + got.wake + cool;
                                assert!(sum <= size, "{standing:?}: {of:?} got {got:?}");
                                assert!(got.number >= keep.min(mine));
                            }
                        }
                    }
                }
            }
        }
    }
}
