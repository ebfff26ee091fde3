//! Reads the jobs of a short file, for one transaction.

use std::path::Path;

use jobwire_core::NewJob;

use super::lines;
use super::read::{MAX_BATCH, Source, unreadable, without_mark};
use crate::error::Error;

/// Maximum number of jobs.
const MOST: usize = 10_000;

/// Reads the jobs of a file, or of standard input. `job` makes a job of a line.
///
/// # Errors
/// Names the first bad line, or says that the file is too long.
pub(in crate::commands) fn few(
    file: Option<&Path>,
    job: impl Fn(&[u8]) -> Result<NewJob, String>,
) -> Result<Vec<NewJob>, Error> {
    let mut source = Source::open(file)?;
    let name = &source.name;
    let (mut jobs, mut line) = (Vec::new(), Vec::new());
    let (mut at, mut bytes) = (0, 0);
    loop {
        let read = lines::next(&mut source.input, &mut line);
        let read = read.map_err(|bad| Error::Input(unreadable(name, at + 1, &bad)))?;
        if read == 0 {
            return Ok(jobs);
        }
        at += 1;
        bytes += read as u64;
        let line = without_mark(at, &line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        let job = job(line).map_err(|problem| Error::Input(format!("{name}:{at}: {problem}")))?;
        jobs.push(job);
        if jobs.len() > MOST || bytes > MAX_BATCH {
            return Err(Error::Input(format!(
                "{name} has more than {MOST} jobs or {MAX_BATCH} bytes, which is too much for one \
                 transaction; give fewer or smaller jobs"
            )));
        }
    }
}
