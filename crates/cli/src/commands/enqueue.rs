//! `jobwire enqueue`: creates jobs from JSON lines.
//!
//! Each line has one object: `type`, `payload`, and any field of a job by its name in the job
//! table. A separate thread reads and checks lines while the previous batch is written, in one
//! transaction for each batch. A bad line ends the command. Its transaction is rolled back, and the
//! message names the line and the command to continue with. The ids go to standard output after the
//! commit of their transaction. With `--batch`, all lines are one transaction (`new_batch`).
//!
//! Memory is bounded: a transaction ends early at 32 MiB, at most three batches are in memory, and
//! a line has at most 4 MiB.

mod few;
mod ids;
mod lines;
mod new_batch;
mod parse;
mod progress;
mod read;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use jobwire_core::{BatchId, CommitHook, NewJob, StoreError};
use tokio::sync::mpsc;

use crate::connect::{Creator, Database, Outlet};
use crate::error::Error;
use crate::output::count;
use crate::settings::Settings;
pub(super) use few::few;
use ids::{Created, Ids};
pub use new_batch::NewBatchArgs;
pub use parse::FIELDS;
pub(super) use parse::job;
use progress::Progress;
use read::{Batch, Reader, Source};

/// Returns the last part of the help.
fn fields_help() -> String {
    let lines: Vec<String> = FIELDS.chunks(8).map(|some| some.join(", ")).collect();
    let fields = lines.join(",\n  ");
    format!(
        "Fields of a line (docs/reference/jobs.md); only type is required:\n  {fields}\nFor \
         example:\n  {EXAMPLE}"
    )
}

const EXAMPLE: &str = r#"{"type": "sleep", "payload": {"ms": 500}, "process_instance": "order-17", "retry_policy": "R5/PT5M"}"#;

/// Arguments.
#[derive(Debug, Args)]
#[command(after_help = fields_help())]
pub struct EnqueueArgs {
    /// The file; standard input if it is `-` or left out
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Maximum number of jobs in one transaction; it ends earlier at 32 MiB of lines
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub per_transaction: u32,
    /// The batch to create.
    #[command(flatten)]
    pub batch: NewBatchArgs,
    /// The treatment of a field that no job has
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = UnknownFields::Error)]
    pub unknown_fields: UnknownFields,
    /// The type of jobs whose line has no type
    #[arg(long = "type", value_name = "TYPE")]
    pub job_type: Option<String>,
    /// Print a JSON object for each job, with its `id` and `line`, instead of the id alone
    #[arg(long)]
    pub json: bool,
    /// Print no ids
    #[arg(long, conflicts_with = "json")]
    pub quiet: bool,
    /// Number of lines to skip at the beginning
    #[arg(long, value_name = "LINES", default_value_t = 0)]
    pub skip: u64,
}

/// The treatment of a field that no job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnknownFields {
    /// Report it
    Error,
    /// Put it into the payload
    Payload,
}

/// The time that the command waits at its end for hints to be published.
const LAST_HINTS: Duration = Duration::from_secs(10);

pub(crate) async fn run(settings: Settings, args: EnqueueArgs) -> Result<(), Error> {
    let batch = args.batch.batch()?;
    let source = Source::open(args.file.as_deref())?;
    let database = Database::open(&settings).await?;
    let outlet = Outlet::open(&settings).await?;
    let progress = Progress::start(source.size);
    let name = source.name.clone();
    let creator = database.creator(outlet.hook());
    let mut account = Account::new(args.skip);
    let mut ids = Ids::new(&args);
    // One batch waits while another is written and a third is read.
    let (batches, mut queue) = mpsc::channel(1);
    let reader = Reader::new(source, &args, batch.as_ref().map(|batch| batch.id()));
    std::thread::spawn(move || reader.read_all(&batches));
    let result = if let Some(batch) = batch {
        new_batch::create(&mut queue, &creator, batch, &mut account, &mut ids).await
    } else {
        create_all(
            &mut queue,
            &creator,
            &outlet,
            &settings,
            &mut account,
            &mut ids,
            &progress,
        )
        .await
    };
    progress.end();
    let left = outlet.close(LAST_HINTS).await;
    database.store().close().await;
    if result.is_ok() || account.created > 0 || account.existing > 0 {
        account.report(left);
    }
    result.map_err(|failure| account.explain(&name, failure))
}

/// The reason why the command ended.
enum Failure {
    /// A bad line, or an error of the file itself.
    Input(String),
    /// The database refuses the job of this line.
    Refused(u64, StoreError),
    /// The input is too much for one transaction.
    TooMuch(String),
    /// An error of the database.
    Store(StoreError),
}

async fn create_all(
    queue: &mut mpsc::Receiver<Result<Batch, String>>,
    creator: &Creator,
    outlet: &Outlet,
    settings: &Settings,
    account: &mut Account,
    ids: &mut Ids,
    progress: &Progress,
) -> Result<(), Failure> {
    while let Some(batch) = queue.recv().await {
        let batch = batch.map_err(Failure::Input)?;
        let jobs = batch.jobs.len();
        let mut created = batch.ids();
        if let Some(hook) = outlet.hook() {
            make_room(&hook, jobs, settings).await;
        }
        let copy = batch.jobs.clone();
        let ids_of_jobs = match creator.create_all(batch.jobs).await {
            Ok(ids) => ids,
            Err(error) => return Err(failure(creator, copy, &created, error).await),
        };
        let existing = ids::stand_for(&mut created, &ids_of_jobs);
        account.existing += existing;
        account.created += jobs as u64 - existing;
        account.transactions += 1;
        account.lines = batch.last_line;
        progress.at(batch.bytes, account.created);
        progress.aside(|| ids.print(created));
    }
    Ok(())
}

/// Returns the failure of a creation that ended with this error, with the line that is its reason.
async fn failure(
    creator: &Creator,
    jobs: Vec<NewJob>,
    created: &[Created],
    error: StoreError,
) -> Failure {
    if is_of_line(&error)
        && let Some((line, error)) = refused(creator, jobs, created).await
    {
        return Failure::Refused(line, error);
    }
    Failure::Store(error)
}

/// Returns whether other lines may be accepted.
fn is_of_line(error: &StoreError) -> bool {
    error.is_row_fault() || matches!(error, StoreError::BatchEnded(_))
}

/// Returns the first line that the database refuses, with its error. Halves the jobs, and rolls
/// each attempt back.
async fn refused(
    creator: &Creator,
    mut jobs: Vec<NewJob>,
    created: &[Created],
) -> Option<(u64, StoreError)> {
    let mut from = 0;
    loop {
        let error = creator.try_all(&jobs).await.err()?;
        if !is_of_line(&error) {
            return None;
        }
        if jobs.len() == 1 {
            return Some((created.get(from)?.line, error));
        }
        let second = jobs.split_off(jobs.len() / 2);
        if creator.try_all(&jobs).await.is_ok() {
            from += jobs.len();
            jobs = second;
        }
    }
}

/// Waits for room in the hint buffer while the broker accepts hints. The sweeper would publish
/// hints that do not fit, but later.
async fn make_room(hook: &CommitHook, jobs: usize, settings: &Settings) {
    let started = Instant::now();
    while hook.buffered() > 0
        && hook.buffered() + jobs > settings.hint_buffer / 2
        && started.elapsed() < settings.hint_max_age
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Writes to standard error and ignores errors: it may be closed.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The progress of the command.
struct Account {
    started: Instant,
    skipped: u64,
    created: u64,
    /// Unique jobs that existed.
    existing: u64,
    transactions: u64,
    /// The last line whose job is committed.
    lines: u64,
    /// The batch that was created.
    batch: Option<BatchId>,
}

impl Account {
    fn new(skipped: u64) -> Self {
        Self {
            started: Instant::now(),
            skipped,
            created: 0,
            existing: 0,
            transactions: 0,
            lines: skipped,
            batch: None,
        }
    }

    /// Reports the progress on standard error, since it is not a result.
    fn report(&self, hints_left: usize) {
        let seconds = self.started.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = self.created as f64 / seconds.max(0.001);
        say(format_args!(
            "{} created in {}, {seconds:.1} s ({rate:.0} jobs/s)",
            count(self.created, "job"),
            count(self.transactions, "transaction")
        ));
        if self.existing > 0 {
            say(format_args!(
                "{} not created: another job has the unique key",
                count(self.existing, "job")
            ));
        }
        if let Some(batch) = self.batch {
            say(format_args!(
                "they are the batch {batch}; see it with `jobwire batches show {batch}`"
            ));
        }
        if hints_left > 0 {
            say(format_args!(
                "{hints_left} hints could not be published; the sweeper of a running node will \
                 publish them"
            ));
        }
    }

    fn explain(&self, name: &str, failure: Failure) -> Error {
        let Self {
            created,
            lines,
            skipped,
            ..
        } = self;
        let kept = if *created == 0 {
            "No job was created".to_owned()
        } else {
            format!(
                "{} of lines {} to {lines} created",
                count(*created, "job"),
                skipped + 1
            )
        };
        let go_on = if *lines == 0 {
            "run it again".to_owned()
        } else {
            format!("continue with --skip {lines}")
        };
        match failure {
            Failure::Input(problem) => {
                Error::Input(format!("{problem}. {kept}; correct the line, then {go_on}"))
            }
            Failure::TooMuch(problem) => Error::Input(format!("{problem}. {kept}")),
            Failure::Refused(line, error) => Error::Input(format!(
                "{name}:{line}: {}. {kept}; correct the line, then {go_on}",
                Error::Store(error)
            )),
            Failure::Store(error @ StoreError::CommitUnknown(_)) => Error::Failed(format!(
                "{error}. {kept}; whether the transaction that begins after line {lines} of {name} \
                 was committed is unknown: check with `jobwire jobs list` before you continue with \
                 --skip {lines}"
            )),
            Failure::Store(error) => {
                Error::Failed(format!("{}. {kept}; {go_on}", Error::Store(error)))
            }
        }
    }
}
