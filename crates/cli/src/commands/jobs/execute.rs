//! `jobs execute`: runs one job now, in this process.

use std::time::Duration;

use jobwire_core::node::Executed;
use jobwire_core::store::Refusal;
use jobwire_core::{CommitHook, InProcessTransport, JobId, JobState, JobView, Node};
use serde_json::json;
use std::sync::Arc;

use super::Jobs;
use super::operate::{no_such_job, outlet};
use super::place::{Place, written};
use crate::error::Error;
use crate::output;
use crate::signals::Signals;

pub(super) async fn execute(jobs: &Jobs<'_>, id: JobId, json: bool) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let (store, handlers) = (jobs.store.clone(), jobs.handlers.clone());
    let Some((view, ..)) = store.get(id).await? else {
        return Err(no_such_job(id));
    };
    if handlers.get(&view.job_type).is_none() {
        return Err(Error::Failed(format!(
            "this program has no handler for the type `{}`, only for {}; execute the job in the \
             program that has one",
            view.job_type,
            handlers.types().join(", ")
        )));
    }
    let name = written(id);
    match view.state {
        JobState::Executable => {}
        // The operator asked to run it before its due date.
        JobState::Timer => {
            store.retry(id, view.retries.max(1)).await?;
        }
        state => {
            return Err(Error::Failed(format!(
                "job {name} is in the state {state}; make it executable first: {} retry {name}",
                jobs.place.command()
            )));
        }
    }
    let outlet = outlet(jobs).await?;
    let hook = outlet.hook().unwrap_or_else(CommitHook::disconnected);
    // The node receives nothing; with a broker, the hook publishes.
    let executed = Node::on(store, Arc::new(InProcessTransport::new()))
        .handlers(handlers)
        .options(jobs.options.clone())
        .hook(hook)
        .execute(id, signals.next())
        .await;
    outlet.close(Duration::from_secs(5)).await;
    report(jobs.place, id, executed?, json)
}

fn report(place: Place, id: JobId, executed: Executed, json: bool) -> Result<(), Error> {
    let name = written(id);
    let (outcome, explanation) = match &executed {
        Executed::Done => ("done", format!("job {name} is done")),
        Executed::Left(view) => left(place, id, view),
        Executed::SiblingFirst(sibling) => (
            "sibling-first",
            format!(
                "job {name} did not run: {} of the same process instance comes first; execute that \
                 one",
                written(*sibling)
            ),
        ),
        Executed::Refused(why) => refused(id, *why),
        _ => (
            "unknown",
            format!(
                "the outcome of job {name} is unknown; check with `{} show {name}`",
                place.command()
            ),
        ),
    };
    if json {
        let left = match &executed {
            Executed::Left(view) => Some(view),
            _ => None,
        };
        output::json(
            &json!({ "job": id, "outcome": outcome, "explanation": explanation, "left": left }),
        )?;
    } else if outcome == "done" {
        output::line(&explanation)?;
    }
    match (outcome, json) {
        ("done", _) => Ok(()),
        (_, true) => Err(Error::Reported),
        (_, false) => Err(Error::Failed(explanation)),
    }
}

fn left(place: Place, id: JobId, view: &JobView) -> (&'static str, String) {
    let message = view.exception_message.as_deref().unwrap_or("no failure");
    let id = written(id);
    match view.state {
        JobState::Timer => (
            "waits",
            format!(
                "job {id} is not done ({message}) and waits until {}, with {} attempts left",
                view.due_at.map_or("later".to_owned(), super::list::date),
                view.retries
            ),
        ),
        JobState::DeadLetter => (
            "dead-letter",
            format!("job {id} failed and became a dead letter: {message}"),
        ),
        // Camunda keeps a failed job in the same table.
        JobState::Executable if place == Place::Engine => (
            "waits",
            format!(
                "job {id} is not done ({message}) and is ready again, with {} attempts left",
                view.retries
            ),
        ),
        JobState::Executable => (
            "given-back",
            format!("job {id} was released before it was done; it costs no attempt"),
        ),
        _ => (
            "moved",
            format!("job {id} is in the state {} now", view.state),
        ),
    }
}

fn refused(id: JobId, why: Refusal) -> (&'static str, String) {
    let explanation = match why {
        Refusal::Locked => "another node runs it",
        Refusal::InstanceHeld => {
            "another job of its process instance runs; it follows when that job ends"
        }
        Refusal::Suspended => "a suspension or a pause covers it; `jobwire suspensions` lists them",
        Refusal::Gone => "it was done, moved or deleted in the meantime",
        Refusal::Unserved => "this program has no handler for its type",
        _ => "another transaction has locked its row; try again",
    };
    let id = written(id);
    (why.as_str(), format!("job {id} did not run: {explanation}"))
}
