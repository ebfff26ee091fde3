//! A function that chooses a retry policy by the job and its error.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::job::Job;
use crate::job::retry::RetryPolicy;
use crate::runtime::panic_place;
use crate::worker::outcome::HandlerError;

type Choose = dyn Fn(&Job, &HandlerError) -> Option<RetryPolicy> + Send + Sync;

/// A function that chooses a retry policy by the job and its error
/// ([`HandlerOptions::retry_by`](crate::HandlerOptions::retry_by)).
#[derive(Clone)]
pub struct RetryFunction(Arc<Choose>);

impl RetryFunction {
    /// Wraps a function.
    pub fn new<F>(choose: F) -> Self
    where
        F: Fn(&Job, &HandlerError) -> Option<RetryPolicy> + Send + Sync + 'static,
    {
        Self(Arc::new(choose))
    }

    /// Returns the policy that the function chooses; `None` if it chooses none or panics.
    pub(crate) fn choose(&self, job: &Job, error: &HandlerError) -> Option<RetryPolicy> {
        let choice = catch_unwind(AssertUnwindSafe(|| (self.0)(job, error)));
        choice.unwrap_or_else(|panic| {
            tracing::error!(
                job = %job.id, job_type = %job.job_type,
                message = panic_place::message(&*panic), place = panic_place::place_of(&*panic),
                "the retry function of the type panicked; using the policy of the job, its \
                 handler or the node"
            );
            None
        })
    }
}

impl fmt::Debug for RetryFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RetryFunction")
    }
}
