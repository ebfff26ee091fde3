//! Unique jobs: which of some new jobs are created, and which stand for a job that exists.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::job::JobId;
use crate::job::new_job::NewJob;

/// The result of the creation of a unique job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The job was created.
    Created(JobId),
    /// Nothing was created: this job has the unique key.
    Existing(JobId),
}

impl Creation {
    /// Tells what became of the job with this id, given the ids that its creation returned.
    pub(crate) fn of(own: JobId, returned: &[JobId]) -> Self {
        match returned.first() {
            Some(other) if *other != own => Self::Existing(*other),
            _ => Self::Created(own),
        }
    }

    /// Returns the id of the job that has the key.
    #[must_use]
    pub fn id(self) -> JobId {
        match self {
            Self::Created(id) | Self::Existing(id) => id,
        }
    }

    /// Returns whether the job was created.
    #[must_use]
    pub fn is_created(self) -> bool {
        matches!(self, Self::Created(_))
    }
}

/// The claim of a new job to its key, as the tables have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Claim {
    /// Empty for a global key.
    pub(super) r#type: String,
    pub(super) tenant: String,
    pub(super) key: String,
    pub(super) id: JobId,
    pub(super) period_us: Option<i64>,
    pub(super) dead_letters: bool,
}

impl Claim {
    fn of(job: &NewJob) -> Option<Self> {
        let unique = job.unique.as_ref()?;
        let own = |text: &str| if unique.is_global { "" } else { text }.to_owned();
        Some(Self {
            r#type: own(&job.job_type),
            tenant: own(job.tenant.as_deref().unwrap_or_default()),
            key: unique.key.clone(),
            id: job.id,
            period_us: unique.period_micros(),
            dead_letters: unique.dead_letters,
        })
    }

    fn name(&self) -> (&str, &str, &str) {
        (&self.r#type, &self.tenant, &self.key)
    }
}

/// The claims of a batch of new jobs: one for each key, by its first job.
pub(super) struct Claims {
    /// In the order of the keys: every creator claims in this order.
    pub(super) firsts: Vec<Claim>,
    /// Each job with a key, and the place of its key's claim.
    places: Vec<(JobId, usize)>,
}

impl Claims {
    /// Returns the claims, or `None` if no job has a key.
    pub(super) fn of(jobs: &[NewJob]) -> Option<Self> {
        let mut all: Vec<Claim> = jobs.iter().filter_map(Claim::of).collect();
        if all.is_empty() {
            return None;
        }
        // The sort is stable, so the first job of a key stays the first.
        all.sort_by(|a, b| a.name().cmp(&b.name()));
        let mut firsts: Vec<Claim> = Vec::with_capacity(all.len());
        let mut places = Vec::with_capacity(all.len());
        for claim in all {
            let id = claim.id;
            if firsts.last().is_none_or(|last| last.name() != claim.name()) {
                firsts.push(claim);
            }
            places.push((id, firsts.len() - 1));
        }
        Some(Self { firsts, places })
    }

    /// Removes the jobs that do not have their keys, given the holder of each first job's key, and
    /// the first jobs whose keys were taken before. Such a holder may have the id of the first job: a
    /// creator that does not know the fate of its transaction creates the same job again. Returns the
    /// removed jobs, each with the job that has its key.
    pub(super) fn settle(
        &self,
        jobs: &mut Vec<NewJob>,
        holders: &HashMap<JobId, JobId>,
        taken: &HashSet<JobId>,
    ) -> Vec<(JobId, JobId)> {
        let holder = |id: JobId, place: usize| {
            let first = self.firsts.get(place)?.id;
            let holder = *holders.get(&first)?;
            (id != holder || taken.contains(&first)).then_some((id, holder))
        };
        let existing: HashMap<JobId, JobId> = self
            .places
            .iter()
            .filter_map(|(id, place)| holder(*id, *place))
            .collect();
        jobs.retain(|job| !existing.contains_key(&job.id));
        existing.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::unique::UniqueKey;

    #[test]
    fn of_the_jobs_of_a_key_the_first_one_claims_it() {
        assert!(Claims::of(&[NewJob::of("a", &())]).is_none());
        let mut jobs = vec![
            NewJob::of("b", &()).unique("k"),
            NewJob::of("a", &()),
            NewJob::of("b", &()).unique("k"),
            NewJob::of("a", &()).unique("k"),
            NewJob::of("a", &()).unique("k").tenant("t"),
            NewJob::of("a", &())
                .tenant("t")
                .unique(UniqueKey::new("k").global()),
        ];
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let claims = Claims::of(&jobs).unwrap();
        let claimed: Vec<JobId> = claims.firsts.iter().map(|claim| claim.id).collect();
        assert_eq!(claimed, [ids[5], ids[3], ids[4], ids[0]], "sorted by key");
        let other = JobId::generate();
        let holders = claimed.iter().map(|id| (*id, *id));
        let mut holders: HashMap<JobId, JobId> = holders.collect();
        holders.insert(ids[3], other);
        let mut existing = claims.settle(&mut jobs, &holders, &HashSet::new());
        existing.sort_by_key(|(id, _)| ids.iter().position(|other| other == id));
        assert_eq!(existing, [(ids[2], ids[0]), (ids[3], other)]);
        let left: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        assert_eq!(left, [ids[0], ids[1], ids[4], ids[5]]);
        let again = claims.settle(&mut jobs, &holders, &[ids[4]].into());
        assert!(again.contains(&(ids[4], ids[4])), "{again:?}");
        assert_eq!(jobs.len(), 3);
    }
}
