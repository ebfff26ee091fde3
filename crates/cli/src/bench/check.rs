//! The checks of a run. The measurements of a run that fails them are not valid.

use super::seen::Seen;
use crate::error::Error;

/// Checks that each job started exactly once, and that no other job started.
pub(super) fn each_once(seen: &Seen, jobs: u32) -> Result<(), Error> {
    let beyond = u32::try_from(seen.first.len()).map_or(true, |numbers| numbers > jobs);
    if seen.jobs == jobs && seen.again == 0 && seen.strange == 0 && !beyond {
        return Ok(());
    }
    Err(Error::Failed(format!(
        "the run failed its check: {} of {jobs} jobs started, {} started more than once, {} \
         unknown jobs started",
        seen.jobs, seen.again, seen.strange
    )))
}

/// Checks that the jobs of each instance ran one at a time and in the order of creation: no job
/// began before the end of the previous one. Job `n` belongs to instance `n % instances`.
pub(super) fn in_turn(seen: &Seen, instances: u32) -> Result<(), Error> {
    let Ok(instances @ 1..) = usize::try_from(instances) else {
        return Ok(());
    };
    let ended = |n: usize| seen.ended.get(n).copied().filter(|at| *at > 0);
    let starts = seen.first.iter().enumerate().skip(instances);
    let mut wrong = starts
        .map(|(n, start)| (n - instances, *start))
        .filter(|(before, start)| ended(*before).is_none_or(|ended| *start < ended));
    let Some((n, _)) = wrong.next() else {
        return Ok(());
    };
    let more = wrong.count();
    Err(Error::Failed(format!(
        "the run failed its check: job {} of instance {} began before job {} of it had ended, and \
         so did {more} others",
        n / instances + 1,
        n % instances,
        n / instances,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_one_job_too_few_twice_or_strange_is_not_right() {
        let seen = |jobs, again, strange, numbers: usize| Seen {
            first: vec![1; numbers],
            jobs,
            again,
            strange,
            ..Seen::default()
        };
        assert!(each_once(&seen(3, 0, 0, 3), 3).is_ok());
        for wrong in [
            seen(2, 0, 0, 3),
            seen(3, 1, 0, 3),
            seen(3, 0, 1, 3),
            seen(3, 0, 0, 4),
        ] {
            let said = each_once(&wrong, 3).unwrap_err().to_string();
            assert!(said.contains("of 3 jobs started"), "{said}");
        }
    }

    #[test]
    fn jobs_of_an_instance_that_overlap_or_overtake_are_found() {
        // Two instances: jobs 0, 2, 4 and 1, 3, 5.
        let seen = |first: [i64; 6], ended: [i64; 6]| Seen {
            first: first.to_vec(),
            ended: ended.to_vec(),
            ..Seen::default()
        };
        let right = seen([10, 10, 20, 30, 30, 40], [20, 15, 25, 35, 31, 50]);
        assert!(in_turn(&right, 2).is_ok());
        let overlapping = seen([10, 10, 19, 30, 30, 40], [20, 15, 25, 35, 31, 50]);
        let said = in_turn(&overlapping, 2).unwrap_err().to_string();
        assert!(
            said.contains("job 1 of instance 0 began before job 0"),
            "{said}"
        );
        let overtaking = seen([10, 10, 20, 30, 30, 20], [20, 15, 25, 35, 31, 25]);
        let said = in_turn(&overtaking, 2).unwrap_err().to_string();
        assert!(
            said.contains("job 2 of instance 1 began before job 1"),
            "{said}"
        );
        let without_an_end = seen([10, 10, 20, 30, 30, 40], [20, 0, 25, 35, 31, 50]);
        assert!(in_turn(&without_an_end, 2).is_err());
        let untold = Seen {
            ended: Vec::new(),
            ..right
        };
        assert!(in_turn(&untold, 2).is_err());
    }
}
