//! The reading thread: reads lines and sends batches of jobs.

use std::fs::File;
use std::io::{BufRead, BufReader, stdin};
use std::path::Path;

use jobwire_core::{BatchId, NewJob};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;

use super::ids::Created;
use super::lines::{self, BadLine, MAX_LINE};
use super::{EnqueueArgs, UnknownFields, parse};
use crate::error::Error;

/// The input.
pub(super) struct Source {
    pub(super) input: Box<dyn BufRead + Send>,
    /// Its name in messages.
    pub(super) name: String,
    /// Its size in bytes, if known.
    pub(super) size: Option<u64>,
}

impl Source {
    pub(super) fn open(file: Option<&Path>) -> Result<Self, Error> {
        let Some(path) = file.filter(|path| *path != Path::new("-")) else {
            return Ok(Self {
                input: Box::new(BufReader::new(stdin())),
                name: "standard input".to_owned(),
                size: None,
            });
        };
        let name = path.display().to_string();
        let unreadable = |source| Error::File {
            name: name.clone(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if about.is_dir() {
            return Err(Error::Usage(format!("{name} is a directory; give a file")));
        }
        Ok(Self {
            input: Box::new(BufReader::with_capacity(1 << 16, file)),
            name,
            size: about.is_file().then_some(about.len()),
        })
    }
}

/// Bytes of lines at which a transaction ends early: a batch is held in memory.
pub(super) const MAX_BATCH: u64 = 32 << 20;

/// Jobs of one transaction.
pub(super) struct Batch {
    pub(super) jobs: Vec<NewJob>,
    /// The line of each job.
    lines: Vec<u64>,
    /// The line of the last job.
    pub(super) last_line: u64,
    /// The position in the input.
    pub(super) bytes: u64,
}

impl Batch {
    /// Returns the ids of the jobs, with their lines.
    pub(super) fn ids(&self) -> Vec<Created> {
        let lines = self.jobs.iter().zip(&self.lines);
        lines
            .map(|(job, line)| Created {
                id: job.id(),
                line: *line,
                existing: false,
                batch: None,
            })
            .collect()
    }
}

/// Reads and checks lines.
pub(super) struct Reader {
    source: Source,
    batch: usize,
    skip: u64,
    job_type: Option<String>,
    unknown: UnknownFields,
    /// The batch that all jobs will belong to.
    in_batch: Option<BatchId>,
}

/// The batch that a line names itself.
#[derive(Deserialize)]
struct Own {
    batch: Option<IgnoredAny>,
}

impl Reader {
    pub(super) fn new(source: Source, args: &EnqueueArgs, in_batch: Option<BatchId>) -> Self {
        Self {
            source,
            batch: usize::try_from(args.per_transaction).unwrap_or(usize::MAX),
            skip: args.skip,
            job_type: args.job_type.clone(),
            unknown: args.unknown_fields,
            in_batch,
        }
    }

    /// Reads until the end, the first mistake, or the end of the batches' receiver.
    pub(super) fn read_all(mut self, batches: &mpsc::Sender<Result<Batch, String>>) {
        let mut line = Vec::new();
        let mut at = 0;
        let mut bytes = 0;
        let mut sent = 0;
        let (mut jobs, mut numbers) = (Vec::new(), Vec::new());
        loop {
            let read = match lines::next(&mut self.source.input, &mut line) {
                Ok(read) => read,
                Err(bad) => {
                    let problem = unreadable(&self.source.name, at + 1, &bad);
                    let _ = batches.blocking_send(Err(problem));
                    return;
                }
            };
            if read > 0 {
                at += 1;
                bytes += read as u64;
                match self.job(at, &line) {
                    Ok(Some(job)) => {
                        jobs.push(job);
                        numbers.push(at);
                    }
                    Ok(None) => {}
                    Err(problem) => {
                        let _ = batches.blocking_send(Err(problem));
                        return;
                    }
                }
            }
            if jobs.is_empty() {
                // Skipped lines do not fill a batch.
                sent = bytes;
            }
            let full = jobs.len() >= self.batch || bytes - sent >= MAX_BATCH || read == 0;
            if full && !jobs.is_empty() {
                sent = bytes;
                let batch = Batch {
                    jobs: std::mem::take(&mut jobs),
                    lines: std::mem::take(&mut numbers),
                    last_line: at,
                    bytes,
                };
                if batches.blocking_send(Ok(batch)).is_err() {
                    return;
                }
            }
            if read == 0 {
                return;
            }
        }
    }

    fn job(&self, at: u64, line: &[u8]) -> Result<Option<NewJob>, String> {
        let line = without_mark(at, line);
        if at <= self.skip || line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let job = parse::job(line, self.job_type.as_deref(), Some(self.unknown));
        job.and_then(|job| self.member(job, line))
            .map(Some)
            .map_err(|problem| format!("{}:{at}: {problem}", self.source.name))
    }

    /// Checks that the job can be a member of the batch. The caller makes it one.
    fn member(&self, job: NewJob, line: &[u8]) -> Result<NewJob, String> {
        let Some(batch) = self.in_batch else {
            return Ok(job);
        };
        if serde_json::from_slice::<Own>(line).is_ok_and(|own| own.batch.is_some()) {
            return Err(
                "field `batch` names a batch, and --batch creates another one of all lines; leave one \
                 of them out"
                    .to_owned(),
            );
        }
        let member = job.clone().batch(batch);
        member.validate().map_err(|problem| problem.to_string())?;
        Ok(job)
    }
}

/// Returns the line without the byte order mark that some editors write at the start of a file.
pub(super) fn without_mark(at: u64, line: &[u8]) -> &[u8] {
    match (at, line.strip_prefix(b"\xef\xbb\xbf")) {
        (1, Some(rest)) => rest,
        _ => line,
    }
}

/// Returns the message for a line that can't be read.
pub(super) fn unreadable(name: &str, at: u64, bad: &BadLine) -> String {
    match bad {
        BadLine::TooLong => format!(
            "{name}:{at}: the line is longer than {MAX_LINE} bytes; store large data elsewhere and \
             put its key into the payload"
        ),
        BadLine::Unreadable(error) => format!("{name}:{at}: can't be read: {error}"),
    }
}
