//! `jobwire events`: switches the event stream on and off, and shows its state.

use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use clap::{Args, Subcommand};
use jobwire_core::Store;
use jobwire_core::event::stream::{COUNTED_EVENTS, EventStreamState};
use jobwire_core::event::{EventStream, stream};
use jobwire_core::job::duration;
use jobwire_core::telemetry::plain;
use serde_json::json;

use crate::connect::Database;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Arguments.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Publish the events of jobs to the broker from now on; replaces the options of an earlier `on`
    On(OnArgs),
    /// Publish no events; those that wait are deleted
    Off,
    /// Show whether events are published, and how many wait
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// The options of the stream.
#[derive(Debug, Args)]
pub struct OnArgs {
    /// Only these kinds of events, separated by commas; if left out, all
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    kinds: Vec<String>,
    /// Only events of jobs of these types, separated by commas; if left out, all
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    types: Vec<String>,
    /// How long an event waits for the broker before it is dropped; at least a minute, at most ten years
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration::parse)]
    keep: Duration,
    /// The `source` of the events; if left out, `jobwire/` and the name of the database
    #[arg(long, value_name = "SOURCE")]
    source: Option<String>,
}

pub(crate) async fn run(settings: Settings, args: EventsArgs) -> Result<(), Error> {
    if let Action::On(_) = &args.action {
        refuse_without_broker(&settings)?;
    }
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let result = act(&settings, &*store, args.action).await;
    store.close().await;
    result
}

/// The stream needs a broker: without one, events would only wait.
fn refuse_without_broker(settings: &Settings) -> Result<(), Error> {
    match settings.broker_url.scheme() {
        "in-process" | "none" => Err(Error::Usage(
            "the event stream needs a broker, and `broker_url` names none: give --broker \
             (JOBWIRE_BROKER_URL), for example amqps://user:password@host or \
             kafka://user:password@host/prefix?tls=true"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

async fn act(settings: &Settings, store: &dyn Store, action: Action) -> Result<(), Error> {
    match action {
        Action::On(args) => {
            let source = args.source.unwrap_or_else(|| source_of(settings));
            let mut stream = EventStream::new(source).keep(args.keep);
            if !args.kinds.is_empty() {
                stream = stream.kinds(args.kinds);
            }
            if !args.types.is_empty() {
                stream = stream.types(args.types);
            }
            stream.check().map_err(Error::Usage)?;
            store.switch_event_stream(Some(&stream)).await?;
            output::line(format_args!(
                "the event stream is on; the leader begins within a minute"
            ))?;
            show_options(&stream)
        }
        Action::Off => {
            let dropped = store.switch_event_stream(None).await?;
            let dropped = match dropped {
                0 => String::new(),
                dropped => format!("; {} not published", output::count(dropped, "event")),
            };
            output::line(format_args!("the event stream is off{dropped}"))
        }
        Action::Status { json } => show(&store.event_stream_state().await?, json),
    }
}

/// Returns the source of the events of this database: its name, or that of its file.
fn source_of(settings: &Settings) -> String {
    let url = settings.database_url.expose();
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let name = path.rsplit(['/', ':']).next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = name.chars().filter(|c| plain(*c)).take(200).collect();
    format!("jobwire/{name}")
}

fn show_options(stream: &EventStream) -> Result<(), Error> {
    output::line(format_args!("source   {}", stream.source))?;
    let all = stream.kinds.len() == stream::STREAMED_KINDS.len();
    let kinds = if all {
        "all".to_owned()
    } else {
        stream.kinds.join(", ")
    };
    output::line(format_args!("kinds    {kinds}"))?;
    let types = match &stream.types {
        None => "all".to_owned(),
        Some(types) => plain::one_line(&types.join(", "), 1_000).to_string(),
    };
    output::line(format_args!("types    {types}"))?;
    output::line(format_args!("keep     {}", duration::write(stream.keep)))
}

fn show(state: &EventStreamState, json: bool) -> Result<(), Error> {
    if json {
        return output::json(&json!({
            "on": state.stream.is_some(),
            "source": state.stream.as_ref().map(|stream| &stream.source),
            "kinds": state.stream.as_ref().map(|stream| &stream.kinds),
            "types": state.stream.as_ref().and_then(|stream| stream.types.as_ref()),
            "keep_seconds": state.stream.as_ref().map(|stream| stream.keep.as_secs()),
            "intact": state.is_intact,
            "waiting": state.waiting,
            "oldest": state.oldest,
        }));
    }
    match &state.stream {
        None => output::line("the event stream is off")?,
        Some(stream) => {
            output::line("the event stream is on")?;
            show_options(stream)?;
        }
    }
    let more = if state.waiting >= COUNTED_EVENTS {
        " or more"
    } else {
        ""
    };
    let since = state.oldest.map_or(String::new(), |at| {
        format!(", since {}", at.to_rfc3339_opts(SecondsFormat::Secs, true))
    });
    output::line(format_args!("waiting  {}{more}{since}", state.waiting))?;
    if !state.is_intact {
        output::line(
            "WRONG    the triggers of the event stream are not those of its options\n       -> \
             `jobwire events on` or `jobwire events off` makes them anew",
        )?;
        return Err(Error::Reported);
    }
    Ok(())
}

/// Returns the problem of a stream and its remedy, for the doctor. A `None` is no problem.
pub(crate) fn problem(settings: &Settings, state: &EventStreamState) -> Option<(String, String)> {
    if !state.is_intact {
        return Some((
            "the triggers of the event stream are not those of its options".to_owned(),
            "`jobwire events on` or `jobwire events off` makes them anew".to_owned(),
        ));
    }
    state.stream.as_ref()?;
    if refuse_without_broker(settings).is_err() {
        return Some((
            "the event stream is on, and `broker_url` names no broker".to_owned(),
            "set `broker_url`, or switch the stream off with `jobwire events off`".to_owned(),
        ));
    }
    let waits = state.oldest.map(|at| Utc::now() - at);
    if waits.is_some_and(|waits| waits > chrono::Duration::minutes(5)) {
        return Some((
            format!("{} events wait, for more than five minutes", state.waiting),
            "start a node that reaches the broker; its log says why events are not published"
                .to_owned(),
        ));
    }
    None
}
