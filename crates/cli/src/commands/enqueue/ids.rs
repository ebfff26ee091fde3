//! Prints the ids of created jobs to standard output: one in each line, or one JSON object.

use std::io::Write;

use jobwire_core::{BatchId, JobId};
use serde::Serialize;

use super::EnqueueArgs;

/// A created job.
#[derive(Serialize)]
pub(super) struct Created {
    pub(super) id: JobId,
    /// Its line in the input, from 1.
    pub(super) line: u64,
    /// Whether nothing was created, because this job has the unique key of the line.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) existing: bool,
    /// The batch that was created with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<BatchId>,
}

/// Writes the ids that the creation returned, and returns the number of jobs that existed.
pub(super) fn stand_for(created: &mut [Created], ids: &[JobId]) -> u64 {
    let mut existing = 0;
    for (job, id) in created.iter_mut().zip(ids) {
        job.existing = job.id != *id;
        job.id = *id;
        existing += u64::from(job.existing);
    }
    existing
}

/// Prints ids in the form that the arguments choose.
pub(super) struct Ids {
    json: bool,
    /// Whether no ids are printed: the output is closed, or `--quiet` is given.
    silent: bool,
}

impl Ids {
    pub(super) fn new(args: &EnqueueArgs) -> Self {
        Self {
            json: args.json,
            silent: args.quiet,
        }
    }

    /// Prints the jobs of a committed transaction.
    pub(super) fn print(&mut self, created: Vec<Created>) {
        if self.silent {
            return;
        }
        let mut text = String::new();
        for job in created {
            let line = if self.json {
                serde_json::to_string(&job).unwrap_or_default()
            } else {
                job.id.to_string()
            };
            text.push_str(&line);
            text.push('\n');
        }
        let mut out = std::io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        self.silent = written.is_err();
    }
}
