//! The reports of a run's nodes: the start of each job.

use super::wire::Told;

/// The reports so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// By number: the time of the job's first start, in microseconds; 0 if it did not start.
    pub(super) first: Vec<i64>,
    /// By number: the time of the handler's first end, if nodes report it.
    pub(super) ended: Vec<i64>,
    /// Jobs that started, each counted once.
    pub(super) jobs: u32,
    /// Starts beyond the first of a job.
    pub(super) again: u64,
    /// Reports with numbers that no job of the run has, and invalid reports.
    pub(super) strange: u64,
    /// Jobs that the nodes' sweepers hinted.
    pub(super) swept: u64,
    /// The limit of the jobs' numbers, exclusive.
    pub(super) most: u32,
}

impl Seen {
    pub(super) fn note(&mut self, told: Told) {
        match told {
            Told::Started { n, at } => match slot(&mut self.first, n, self.most) {
                Some(first) if *first == 0 => {
                    *first = at;
                    self.jobs += 1;
                }
                Some(_) => self.again += 1,
                None => self.strange += 1,
            },
            Told::Ended { n, at } => match slot(&mut self.ended, n, self.most) {
                Some(ended) if *ended == 0 => *ended = at,
                // The repeated start was counted already.
                Some(_) => {}
                None => self.strange += 1,
            },
            Told::Swept { jobs } => self.swept += u64::try_from(jobs).unwrap_or(0),
        }
    }

    /// Returns the last start of the jobs from number `from` on.
    pub(super) fn last_start(&self, from: u32) -> Option<i64> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        self.first.iter().skip(from).copied().max()
    }

    /// Returns the first start of all jobs.
    pub(super) fn first_start(&self) -> Option<i64> {
        self.first.iter().copied().filter(|at| *at > 0).min()
    }

    /// Returns the time at which `count` jobs had started.
    pub(super) fn start_number(&self, count: u32) -> Option<i64> {
        let mut starts: Vec<i64> = self.first.iter().copied().filter(|at| *at > 0).collect();
        let at = usize::try_from(count).ok()?.checked_sub(1)?;
        if at >= starts.len() {
            return None;
        }
        Some(*starts.select_nth_unstable(at).1)
    }
}

/// Returns the slot of a job's time. The vector grows with the numbers, up to the limit `most`.
fn slot(moments: &mut Vec<i64>, n: u32, most: u32) -> Option<&mut i64> {
    if n >= most {
        return None;
    }
    let n = usize::try_from(n).ok()?;
    if moments.len() <= n {
        moments.resize(n + 1, 0);
    }
    moments.get_mut(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(most: u32, told: &[(u32, i64)]) -> Seen {
        let mut seen = Seen {
            most,
            ..Seen::default()
        };
        for (n, at) in told {
            seen.note(Told::Started { n: *n, at: *at });
        }
        seen
    }

    #[test]
    fn a_job_counts_once_and_what_is_wrong_is_counted_apart() {
        let mut seen = seen(2, &[(1, 10), (1, 20), (7, 30)]);
        for jobs in [4, 5] {
            seen.note(Told::Swept { jobs });
        }
        seen.note(Told::Ended { n: 1, at: 15 });
        assert_eq!((seen.jobs, seen.again, seen.strange), (1, 1, 1));
        assert_eq!((seen.first.as_slice(), seen.swept), ([0, 10].as_slice(), 9));
        assert_eq!(seen.ended, [0, 15]);
    }

    #[test]
    fn the_moments_of_a_run_are_found() {
        let seen = seen(9, &[(0, 40), (2, 10), (3, 30)]);
        assert_eq!(
            (seen.first_start(), seen.last_start(1)),
            (Some(10), Some(30))
        );
        assert_eq!(seen.start_number(2), Some(30));
        assert_eq!((seen.start_number(4), seen.start_number(0)), (None, None));
    }
}
