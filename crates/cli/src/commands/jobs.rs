//! `jobwire jobs`: lists, shows and changes jobs. `jobwire engine jobs` does the same with the jobs
//! of a process engine.

mod attempt_list;
mod change;
mod end;
mod execute;
mod filter;
mod history;
mod list;
mod operate;
mod place;
mod replace;
mod show;

use std::sync::Arc;

use clap::{Args, Subcommand};
use jobwire_core::store::attempts::IncidentFilter;
use jobwire_core::{BulkOperation, Handlers, JobCursor, JobId, JobSort, NodeOptions, Store};

use crate::connect::{Database, Outlet};
use crate::error::Error;
use crate::handlers;
use crate::output;
use crate::settings::Settings;
use attempt_list::AttemptListArgs;
use change::ChangeArgs;
use end::EndArgs;
use filter::FilterArgs;
use operate::Selection;
pub(crate) use place::{Place, written};
use replace::ReplaceArgs;

/// Arguments.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// List jobs
    List {
        /// The filters.
        #[command(flatten)]
        filter: Box<FilterArgs>,
        /// Sort by creation, id, due, created, priority, retries, instance, execution, definition,
        /// definition-key, tenant or type; with `:desc` behind it the largest first
        #[arg(long, value_name = "FIELD", default_value_t = JobSort::default())]
        sort: JobSort,
        /// Continue behind the page that ended with this cursor
        #[arg(long, value_name = "CURSOR")]
        after: Option<JobCursor>,
        /// Maximum number of jobs
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
        /// Number of jobs to skip at the beginning
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
        offset: i64,
        /// Print a JSON array; each job has the cursor behind it
        #[arg(long)]
        json: bool,
    },
    /// Count jobs
    Count {
        /// The filters.
        #[command(flatten)]
        filter: Box<FilterArgs>,
        /// Stop counting at this number; without it all are counted
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
        limit: Option<i64>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show all fields of one job
    Show {
        /// The job
        #[arg(value_parser = place::parse)]
        id: JobId,
        /// Show its recorded attempts and its incidents, too
        #[arg(long)]
        history: bool,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make dead letters executable now; with --state also retries that wait, timers and others
    Retry {
        /// The jobs.
        #[command(flatten)]
        selection: Selection,
        /// Confirm that all matches run, if they are not only dead letters
        #[arg(long)]
        yes: bool,
        /// Number of attempts that each gets
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..))]
        retries: i32,
        /// Let a node do it in the background, as a job with progress; prints the id of that job
        #[arg(long)]
        as_job: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete jobs that are not running
    Delete {
        /// The jobs.
        #[command(flatten)]
        selection: Selection,
        /// Confirm that all matches are deleted
        #[arg(long)]
        yes: bool,
        /// Let a node do it in the background, as a job with progress; prints the id of that job
        #[arg(long)]
        as_job: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete jobs, also those that run: their handlers are stopped
    Cancel {
        /// The jobs.
        #[command(flatten)]
        selection: Selection,
        /// Confirm that all matches are deleted
        #[arg(long)]
        yes: bool,
        /// Let a node do it in the background, as a job with progress; prints the id of that job
        #[arg(long)]
        as_job: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Reschedule, suspend or activate jobs, make them dead letters, or set their attempts
    Change {
        /// The jobs.
        #[command(flatten)]
        selection: Selection,
        /// The change.
        #[command(flatten)]
        change: ChangeArgs,
        /// Confirm that all matches are changed
        #[arg(long)]
        yes: bool,
        /// Let a node do it in the background, as a job with progress; prints the id of that job
        #[arg(long)]
        as_job: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete all jobs of an instance, an execution, a definition or all its versions, or start timers, in
    /// one transaction
    End {
        /// The scope.
        #[command(flatten)]
        scope: EndArgs,
        /// Confirm that all its jobs are deleted
        #[arg(long)]
        yes: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the start timers of a process definition by those of a file, in one transaction
    ReplaceTimers {
        /// The definition and its timers.
        #[command(flatten)]
        replace: ReplaceArgs,
        /// Confirm that the present start timers are deleted
        #[arg(long)]
        yes: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Take the locks away from jobs whose handlers never end; their nodes can't complete them any more
    Unlock {
        /// The jobs
        #[arg(value_name = "ID", required = true, value_parser = place::parse)]
        ids: Vec<JobId>,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the recorded attempts of a job, which may be done; without ID, list those of all jobs
    Attempts {
        /// The job: all of its attempts in their order, without filters and pages
        #[arg(value_parser = place::parse)]
        id: Option<JobId>,
        /// The list.
        #[command(flatten)]
        list: Box<AttemptListArgs>,
        /// Print a JSON array; without ID each attempt has the cursor behind it
        #[arg(long)]
        json: bool,
    },
    /// Show failures by type and message, the most frequent first
    Errors {
        /// Only of this handler type
        #[arg(long = "type", value_name = "TYPE")]
        job_type: Option<String>,
        /// Maximum number of lines
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show incidents, the latest first: jobs that are dead letters
    Incidents {
        /// Only of this job
        #[arg(long, value_name = "ID", value_parser = place::parse)]
        id: Option<JobId>,
        /// Only of this handler type
        #[arg(long = "type", value_name = "TYPE")]
        job_type: Option<String>,
        /// Also those whose jobs were revived or deleted
        #[arg(long)]
        resolved: bool,
        /// Maximum number of incidents
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Run one job now: with the built-in handlers of this process, or, for `jobwire engine jobs`, in
    /// the engine
    Execute {
        /// The job
        #[arg(value_parser = place::parse)]
        id: JobId,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

impl Action {
    /// Returns the ids that were given.
    fn ids(&self) -> &[JobId] {
        match self {
            Self::List { filter, .. } | Self::Count { filter, .. } => &filter.ids,
            Self::Show { id, .. } | Self::Execute { id, .. } => std::slice::from_ref(id),
            Self::Attempts { id: Some(id), .. } => std::slice::from_ref(id),
            Self::Attempts { list, .. } => &list.ids,
            Self::Incidents { id, .. } => id.as_slice(),
            Self::Errors { .. } | Self::End { .. } | Self::ReplaceTimers { .. } => &[],
            Self::Unlock { ids, .. } => ids,
            Self::Retry { selection, .. }
            | Self::Cancel { selection, .. }
            | Self::Delete { selection, .. }
            | Self::Change { selection, .. } => &selection.ids,
        }
    }

    /// Checks the arguments without the database.
    fn check(&self, place: Place) -> Result<(), Error> {
        place.check(self.ids())?;
        match self {
            Self::Attempts { .. }
            | Self::Errors { .. }
            | Self::Incidents { .. }
            | Self::Show { history: true, .. }
                if place == Place::Engine =>
            {
                Err(Error::Usage(
                    "the engine keeps the history of its jobs; ask the engine for it".to_owned(),
                ))
            }
            Self::Change { .. }
            | Self::Unlock { .. }
            | Self::End { .. }
            | Self::ReplaceTimers { .. }
                if place == Place::Engine =>
            {
                Err(Error::Usage(
                    "jobs of an engine are changed by the engine's own interface; `jobwire engine \
                     jobs retry` and `delete` call it"
                        .to_owned(),
                ))
            }
            Self::Attempts {
                id: Some(id), list, ..
            } if list.is_given() => {
                let id = written(*id);
                Err(Error::Usage(format!(
                    "`jobs attempts {id}` shows all attempts of one job, without filters and pages; \
                     write `jobs attempts --id {id}` for a list of its attempts"
                )))
            }
            Self::Attempts { list, .. } => {
                let checked = list.query().check();
                checked.map_err(|error| Error::Usage(error.to_string()))
            }
            Self::Cancel { .. } if place == Place::Engine => Err(Error::Usage(
                "an execution of an engine can't be stopped from outside; `jobwire engine jobs \
                 delete` deletes jobs that do not run"
                    .to_owned(),
            )),
            Self::Retry { selection, .. }
            | Self::Cancel { selection, .. }
            | Self::Delete { selection, .. }
            | Self::Change { selection, .. } => selection.check(),
            _ => Ok(()),
        }
    }
}

/// The jobs that a command works on.
pub(crate) struct Jobs<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) place: Place,
    /// The database of Jobwire's own jobs.
    pub(crate) database: Option<&'a Database>,
    pub(crate) store: Arc<dyn Store>,
    /// The handlers that run a job in this process.
    pub(crate) handlers: Handlers,
    /// The options of the node that runs it.
    pub(crate) options: NodeOptions,
}

pub(crate) async fn run(settings: Settings, args: JobsArgs) -> Result<(), Error> {
    args.action.check(Place::Own)?;
    let mut handlers = Handlers::default();
    if let Action::Execute { .. } = args.action {
        handlers = handlers::configured(&settings)?;
        handlers::apply_where_served(&mut handlers, &settings);
    }
    let database = Database::open_existing(&settings).await?;
    let jobs = Jobs {
        settings: &settings,
        place: Place::Own,
        database: Some(&database),
        store: database.store(),
        handlers,
        options: settings.node_options(),
    };
    let result = jobs.act(args.action).await;
    database.store().close().await;
    result
}

/// Checks the arguments of `jobwire engine jobs`.
pub(crate) fn check_for_engine(args: &JobsArgs) -> Result<(), Error> {
    args.action.check(Place::Engine)
}

impl Jobs<'_> {
    /// Creates the job of a bulk operation, and prints its id.
    async fn create(&self, operation: &BulkOperation, json: bool) -> Result<(), Error> {
        let Some(database) = self.database else {
            return Err(Error::Usage(
                "--as-job is for jobs of Jobwire; leave it out".to_owned(),
            ));
        };
        let job = operation.job()?;
        let outlet = Outlet::open(self.settings).await?;
        let created = database.creator(outlet.hook()).create_all(vec![job]).await;
        outlet.close_and_tell().await;
        for id in created? {
            if json {
                output::json(&serde_json::json!({ "id": id }))?;
            } else {
                output::line(id)?;
            }
        }
        Ok(())
    }

    pub(crate) async fn act(&self, action: Action) -> Result<(), Error> {
        let (settings, place) = (self.settings, self.place);
        let store = &*self.store;
        match action {
            Action::List {
                filter,
                sort,
                after,
                limit,
                offset,
                json,
            } => {
                let mut query = filter.query().sort(sort).offset(offset).limit(limit);
                query.after = after;
                list::list(store, place, &query, json).await
            }
            Action::Count {
                filter,
                limit,
                json,
            } => list::count(store, &filter.query(), limit, json).await,
            Action::Show { id, history, json } => show::show(store, id, history, json).await,
            Action::Retry {
                mut selection,
                yes,
                retries,
                as_job,
                json,
            } => {
                let by_state = operate::Matching::of(&mut selection, store).await?;
                if by_state.more_than_dead_letters() && !yes {
                    return Err(Error::Usage(format!(
                        "{by_state} {} and would run now; check with `{} list` first, then \
                         pass --yes, or leave --state out for dead letters only",
                        by_state.verb(),
                        place.command()
                    )));
                }
                if as_job {
                    let operation = BulkOperation::retry(selection.query(), retries);
                    return self.create(&operation, json).await;
                }
                let ids = selection.ids(store).await?;
                operate::retry(self, &ids, retries, json).await
            }
            Action::Delete {
                selection,
                yes,
                as_job,
                json,
            } => {
                selection.confirmed(store, place, yes).await?;
                if as_job {
                    let operation = BulkOperation::delete(selection.query());
                    return self.create(&operation, json).await;
                }
                let ids = selection.ids(store).await?;
                operate::delete(self, &ids, json).await
            }
            Action::Change {
                mut selection,
                change,
                yes,
                as_job,
                json,
            } => {
                let change = change.change();
                let states = change::states(&change);
                let matching = operate::Matching::in_states(&mut selection, &states, store).await?;
                if selection.all && !yes {
                    return Err(Error::Usage(format!(
                        "{matching} {} and would be changed; check with `{} list` first, \
                         then pass --yes",
                        matching.verb(),
                        place.command()
                    )));
                }
                if as_job {
                    let operation = BulkOperation::change(selection.query(), change);
                    return self.create(&operation, json).await;
                }
                let ids = selection.ids(store).await?;
                operate::change(self, &ids, &change, json).await
            }
            Action::Attempts {
                id: Some(id), json, ..
            } => history::attempts(store, id, json).await,
            Action::Attempts { list, json, .. } => {
                attempt_list::list(store, &list.query(), json).await
            }
            Action::Errors {
                job_type,
                limit,
                json,
            } => history::errors(store, job_type.as_deref(), limit, json).await,
            Action::Incidents {
                id,
                job_type,
                resolved,
                limit,
                json,
            } => {
                let filter = IncidentFilter::default()
                    .job(id)
                    .job_type(job_type)
                    .resolved(resolved)
                    .limit(limit);
                history::incidents(store, &filter, json).await
            }
            Action::Unlock { ids, json } => operate::unlock(self, &ids, json).await,
            Action::Cancel {
                selection,
                yes,
                as_job,
                json,
            } => {
                selection.confirmed(store, place, yes).await?;
                if as_job {
                    let operation = BulkOperation::cancel(selection.query());
                    return self.create(&operation, json).await;
                }
                let ids = selection.ids(store).await?;
                operate::cancel(settings, store, &ids, json).await
            }
            Action::End { scope, yes, json } => end::end(self, scope, yes, json).await,
            Action::ReplaceTimers { replace, yes, json } => {
                replace::replace(self, replace, yes, json).await
            }
            Action::Execute { id, json } => execute::execute(self, id, json).await,
        }
    }
}
