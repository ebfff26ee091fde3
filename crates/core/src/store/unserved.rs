//! Reads the rows of the statement that counts the jobs that no living node takes. Its rows are in
//! order of types; each has the names of some jobs of its type.

use crate::job::query::UnservedType;
use crate::job::scope::{Needs, Services};

/// Maximum number of rows that the statement returns for a type.
pub(super) const NAMES_OF_TYPE: i64 = 100;

/// The types that were read.
pub(super) struct UnservedTypes<'s> {
    services: &'s Services,
    found: Vec<UnservedType>,
}

impl<'s> UnservedTypes<'s> {
    /// Begins to read the jobs that these services do not take.
    pub(super) fn new(services: &'s Services) -> Self {
        Self {
            services,
            found: Vec::new(),
        }
    }

    /// Begins a type with this number of jobs.
    pub(super) fn begin(&mut self, job_type: String, jobs: i64) {
        self.found.push(UnservedType::new(job_type, jobs));
    }

    /// Adds jobs of the last type that have these names.
    pub(super) fn add(&mut self, names: Needs, jobs: i64) {
        if let Some(last) = self.found.last_mut() {
            let job_type = last.job_type.clone();
            last.add(&Needs { job_type, ..names }, jobs, self.services);
        }
    }

    /// Returns the types.
    pub(super) fn end(mut self) -> Vec<UnservedType> {
        for of in &mut self.found {
            of.shorten();
        }
        self.found
    }
}
