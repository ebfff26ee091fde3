//! The place of a command's jobs, and the form of their ids.
//!
//! Jobwire converts the ids of a process engine's jobs to UUIDs. Operators write and read the
//! engine's form: `1207`, and not a UUID, for engines that number their jobs.

use jobwire_core::JobId;
use jobwire_engines::id::{engine_id, job_id};

use crate::error::Error;

/// The tables of a command's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Jobwire's own tables.
    Own,
    /// The tables of a process engine.
    Engine,
}

impl Place {
    /// Returns the command whose actions work on these jobs.
    pub(super) const fn command(self) -> &'static str {
        match self {
            Self::Own => "jobwire jobs",
            Self::Engine => "jobwire engine jobs",
        }
    }

    /// Returns the verb for jobs that were retried.
    pub(super) const fn retried(self) -> &'static str {
        match self {
            Self::Own => "made executable",
            Self::Engine => "made executable by the engine",
        }
    }

    /// Fails if an id has a form that no job here has.
    pub(super) fn check(self, ids: &[JobId]) -> Result<(), Error> {
        let wrong = ids.iter().find(|id| written(**id) != id.to_string());
        match (self, wrong) {
            (Self::Own, Some(id)) => Err(Error::Usage(format!(
                "`{}` is not the id of a job of Jobwire; for a job of an engine use {}",
                written(*id),
                Self::Engine.command()
            ))),
            _ => Ok(()),
        }
    }
}

/// Reads the id of a job, in Jobwire's form or the engine's.
pub(super) fn parse(text: &str) -> Result<JobId, String> {
    text.parse().or_else(|_| {
        job_id(text).map_err(|_| {
            "write the UUID of the job, or the engine's id if the engine numbers its jobs"
                .to_owned()
        })
    })
}

/// Returns the id in the form that operators read.
pub(crate) fn written(id: JobId) -> String {
    engine_id(id).unwrap_or_else(|| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_they_are_read_and_a_number_is_no_job_of_jobwire() {
        for text in ["1207", "JOB-1207", "0198c0de-7777-7000-8000-000000000001"] {
            let id = parse(text).expect(text);
            assert_eq!(written(id), text);
            assert!(Place::Engine.check(&[id]).is_ok());
            assert_eq!(Place::Own.check(&[id]).is_ok(), text.len() > 30, "{text}");
        }
        assert!(parse("order-1").is_err());
    }
}
