//! `jobwire enqueue --batch`: a batch of the jobs of all lines, in one transaction. The whole input is in
//! memory: a batch that is committed with a part of its jobs could end before the next part.

use clap::Args;
use jobwire_core::{Batch, BatchId, InvalidJob};
use tokio::sync::mpsc;

use super::ids::{self, Created};
use super::read::MAX_BATCH;
use super::{Account, Failure, Ids, failure, parse, read};
use crate::connect::Creator;
use crate::error::Error;

/// Maximum number of jobs of one transaction.
const MOST: usize = 100_000;

/// The options of a new batch.
#[derive(Debug, Args)]
pub struct NewBatchArgs {
    /// Create a batch with this name of the jobs of all lines, in one transaction: all or none
    #[arg(long = "batch", id = "batch_name", value_name = "NAME", conflicts_with = "per_transaction", value_parser = name)]
    pub name: Option<String>,
    /// The job that is created when all jobs of the batch have ended, as an object like that of a line
    #[arg(long, value_name = "JSON", requires = "batch_name")]
    pub then: Option<String>,
    /// Let dead letters of the batch count as ended; otherwise they keep it open
    #[arg(long, requires = "batch_name")]
    pub or_dead_letters: bool,
}

fn name(text: &str) -> Result<String, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(
            "the name of a batch is no number here, since `--batch` was once the number of jobs in a \
             transaction; for that write `--per-transaction`, otherwise choose another name"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

impl NewBatchArgs {
    /// Returns the batch without its jobs, if one is to be created.
    ///
    /// # Errors
    /// Names the option, the mistake and the remedy.
    pub(super) fn batch(&self) -> Result<Option<Batch>, Error> {
        let Some(name) = &self.name else {
            return Ok(None);
        };
        let mut batch = Batch::named(name);
        if self.or_dead_letters {
            batch = batch.or_dead_letters();
        }
        let checked = |batch: &Batch, option: &str| {
            let wrong = |problem: InvalidJob| Error::Usage(format!("--{option}: {problem}"));
            batch.check().map_err(wrong)
        };
        checked(&batch, "batch")?;
        if let Some(then) = &self.then {
            let job = parse::job(then.as_bytes(), None, None);
            batch = batch.then(job.map_err(|problem| Error::Usage(format!("--then: {problem}")))?);
            checked(&batch, "then")?;
        }
        Ok(Some(batch))
    }
}

/// Reads all lines, and creates the batch with their jobs.
pub(super) async fn create(
    queue: &mut mpsc::Receiver<Result<read::Batch, String>>,
    creator: &Creator,
    batch: Batch,
    account: &mut Account,
    ids: &mut Ids,
) -> Result<(), Failure> {
    let id = batch.id();
    let (mut jobs, mut created) = (Vec::new(), Vec::new());
    let mut last_line = account.lines;
    while let Some(read) = queue.recv().await {
        let read = read.map_err(Failure::Input)?;
        created.extend(read.ids());
        last_line = read.last_line;
        jobs.extend(read.jobs);
        if jobs.len() > MOST || read.bytes > MAX_BATCH {
            return Err(Failure::TooMuch(format!(
                "a batch is created in one transaction, and the input has more than {MOST} jobs or \
                 {MAX_BATCH} bytes; give fewer or smaller jobs, or jobs that create the others \
                 (\"seeds\" in docs/guides/batches.md)"
            )));
        }
    }
    let copy = jobs.clone();
    let ids_of_jobs = match creator.create_batch(batch, jobs).await {
        Ok(ids) => ids,
        Err(error) => return Err(failure(creator, copy, &created, error).await),
    };
    let existing = ids::stand_for(&mut created, &ids_of_jobs);
    in_batch(&mut created, id);
    account.batch = Some(id);
    account.existing = existing;
    account.created = created.len() as u64 - existing;
    account.transactions = 1;
    account.lines = last_line;
    ids.print(created);
    Ok(())
}

/// Notes the batch of the jobs that were created. One that existed is no member.
fn in_batch(created: &mut [Created], id: BatchId) {
    for job in created.iter_mut().filter(|job| !job.existing) {
        job.batch = Some(id);
    }
}
