//! `jobwire priorities`: shows, sets and clears the rules that give jobs their priorities.

use clap::{Args, Subcommand};
use jobwire_core::producer::priority_cascade::{CascadeScope, PriorityCascade, PriorityCascaded};
use jobwire_core::telemetry::plain;
use jobwire_core::{BatchId, CommitHook, JobDefinition, PriorityRule, PriorityScope, Store};
use serde_json::{Value, json};

use super::batches;
use crate::connect::{Database, Outlet};
use crate::error::{Error, interrupted};
use crate::output;
use crate::settings::Settings;

/// Maximum number of refused jobs that are named.
const NAMED: usize = 20;

/// Arguments.
#[derive(Debug, Args)]
pub struct PrioritiesArgs {
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Show the rules, those that come first at the top
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Set the priority of new jobs of a type, a process definition, or all
    Set {
        /// The priority; a larger one is more urgent
        #[arg(value_name = "PRIORITY", allow_hyphen_values = true)]
        priority: i64,
        /// The jobs.
        #[command(flatten)]
        scope: ScopeArgs,
    },
    /// Override the priority of jobs of a type, whatever priority their creators give
    Override {
        /// The priority; a larger one is more urgent
        #[arg(value_name = "PRIORITY", allow_hyphen_values = true)]
        priority: i64,
        /// The jobs.
        #[command(flatten)]
        definition: DefinitionArgs,
        /// Give the priority to existing jobs, too, except running ones; ready jobs move to the
        /// lane that the rules choose for it
        #[arg(long)]
        cascade: bool,
    },
    /// Give a priority to the jobs of a batch and of the batches inside it, except running ones;
    /// ready jobs move to the lane that the rules choose for it. Jobs that are added later keep
    /// their own priority
    Change {
        /// The priority; a larger one is more urgent
        #[arg(value_name = "PRIORITY", allow_hyphen_values = true)]
        priority: i64,
        /// The batch
        #[arg(long, value_name = "ID", required = true, value_parser = super::id::<BatchId>)]
        batch: BatchId,
    },
    /// Remove a rule; existing jobs keep their priority
    Clear {
        /// The rule.
        #[command(flatten)]
        scope: ScopeArgs,
    },
    /// Remove an override; existing jobs keep their priority
    ClearOverride {
        /// The override.
        #[command(flatten)]
        definition: DefinitionArgs,
    },
}

/// Exactly one scope of a rule.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ScopeArgs {
    /// Jobs of this handler type
    #[arg(long = "type", value_name = "TYPE")]
    job_type: Option<String>,
    /// Jobs of this process definition
    #[arg(long, value_name = "NAME", visible_alias = "process-definition")]
    definition: Option<String>,
    /// History jobs
    #[arg(long)]
    history: bool,
    /// All other jobs
    #[arg(long)]
    default: bool,
}

/// A job definition.
#[derive(Clone, Debug, Args)]
pub struct DefinitionArgs {
    /// Jobs of this handler type
    #[arg(long = "type", value_name = "TYPE", required = true)]
    job_type: String,
    /// Only jobs of this process definition
    #[arg(long, value_name = "NAME", visible_alias = "process-definition")]
    definition: Option<String>,
    /// Only jobs of this element
    #[arg(long, value_name = "NAME")]
    element: Option<String>,
}

impl ScopeArgs {
    fn scope(self) -> PriorityScope {
        match self {
            Self {
                job_type: Some(name),
                ..
            } => PriorityScope::Type(name),
            Self {
                definition: Some(name),
                ..
            } => PriorityScope::ProcessDefinition(name),
            Self { history: true, .. } => PriorityScope::History,
            _ => PriorityScope::Default,
        }
    }
}

impl DefinitionArgs {
    fn definition(self) -> JobDefinition {
        let mut definition = JobDefinition::of(self.job_type);
        definition.process_definition = self.definition;
        definition.element = self.element;
        definition
    }
}

pub(crate) async fn run(settings: Settings, args: PrioritiesArgs) -> Result<(), Error> {
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let result = act(&settings, &*store, args.action).await;
    store.close().await;
    result
}

async fn act(settings: &Settings, store: &dyn Store, action: Action) -> Result<(), Error> {
    match action {
        Action::List { json } => list(store, json).await,
        Action::Set { priority, scope } => {
            set(store, &PriorityRule::new(scope.scope(), priority)).await
        }
        Action::Override {
            priority,
            definition,
            cascade,
        } => {
            let definition = definition.definition();
            let scope = PriorityScope::Override(definition.clone());
            set(store, &PriorityRule::new(scope, priority)).await?;
            if !cascade {
                return Ok(());
            }
            let scope = CascadeScope::Definition(definition);
            change_existing(settings, store, scope, priority).await
        }
        Action::Change { priority, batch } => {
            batches::found(store, batch).await?;
            change_existing(settings, store, CascadeScope::Batch(batch), priority).await
        }
        Action::Clear { scope } => clear(store, &scope.scope()).await,
        Action::ClearOverride { definition } => {
            clear(store, &PriorityScope::Override(definition.definition())).await
        }
    }
}

async fn set(store: &dyn Store, rule: &PriorityRule) -> Result<(), Error> {
    store.set_priority_rule(rule).await?;
    let scope = said(&rule.scope);
    output::line(format_args!("new jobs {scope}: priority {}", rule.priority))
}

async fn clear(store: &dyn Store, scope: &PriorityScope) -> Result<(), Error> {
    let is_cleared = store.clear_priority_rule(scope).await?;
    let scope = said(scope);
    output::line(if is_cleared {
        format!("cleared the priority of new jobs {scope}")
    } else {
        format!("nothing to do: there is no priority of new jobs {scope}")
    })
}

async fn change_existing(
    settings: &Settings,
    store: &dyn Store,
    scope: CascadeScope,
    priority: i64,
) -> Result<(), Error> {
    let done = match &scope {
        CascadeScope::Definition(_) => "the override is set",
        _ => "some jobs may be changed",
    };
    let cascade = PriorityCascade { scope, priority };
    let outlet = Outlet::open(settings).await?;
    let hook = outlet.hook().unwrap_or_else(CommitHook::disconnected);
    let result = cascade.run(store, &hook).await;
    outlet.close_and_tell().await;
    let done = format!("{done}; run the command again to change the rest of the jobs");
    tell(&result.map_err(|error| interrupted(error, &done))?)
}

fn tell(cascaded: &PriorityCascaded) -> Result<(), Error> {
    let running = match cascaded.running {
        0 => String::new(),
        running => format!("; {} kept theirs", output::count(running, "running job")),
    };
    let changed = output::count(cascaded.changed, "existing job");
    output::line(format_args!("{changed} changed{running}"))?;
    for (id, why) in cascaded.refused.iter().take(NAMED) {
        tracing::warn!(job = %id, why, "the job was not changed");
    }
    Ok(())
}

/// Returns the scope in words.
fn said(scope: &PriorityScope) -> String {
    let (word, [job_type, definition, element]) = scope.parts();
    let named = |what: &str, name: &str| match name {
        "" => String::new(),
        name => format!(" of {what} `{}`", plain::one_line(name, 255)),
    };
    let names = [
        named("type", job_type),
        named("process definition", definition),
        named("element", element),
    ]
    .concat();
    let names = names.trim_start();
    match word {
        "override" => format!("{names} (override)"),
        "history" => "that write history".to_owned(),
        "default" => "without another rule".to_owned(),
        _ => names.to_owned(),
    }
}

async fn list(store: &dyn Store, json: bool) -> Result<(), Error> {
    let mut rules = store.priority_rules().await?;
    rules.sort_by_key(|rule| rule.scope.place());
    if json {
        return output::json(&rules.iter().map(as_json).collect::<Vec<_>>());
    }
    if rules.is_empty() {
        return output::line("no rules: jobs have the priority that their creators give, or 0");
    }
    let rows: Vec<[String; 5]> = rules.iter().map(as_row).collect();
    let head = ["rule", "type", "process definition", "element", "priority"];
    output::table(head, &rows)
}

fn as_row(rule: &PriorityRule) -> [String; 5] {
    let (word, names) = rule.scope.parts();
    let [job_type, definition, element] = names.map(|name| plain::one_line(name, 255));
    let word = word.replace('_', " ");
    [
        word,
        job_type,
        definition,
        element,
        rule.priority.to_string(),
    ]
}

fn as_json(rule: &PriorityRule) -> Value {
    let (word, names) = rule.scope.parts();
    let [job_type, definition, element] = names.map(|name| (!name.is_empty()).then_some(name));
    json!({
        "rule": word,
        "type": job_type,
        "process_definition": definition,
        "element": element,
        "priority": rule.priority,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: PrioritiesArgs,
    }

    fn parsed(args: &[&str]) -> Result<Action, clap::Error> {
        let args = std::iter::once("priorities").chain(args.iter().copied());
        Command::try_parse_from(args).map(|command| command.args.action)
    }

    #[test]
    fn a_rule_has_exactly_one_scope() {
        let scope = |args: &[&str]| match parsed(args).unwrap() {
            Action::Set { priority, scope } => (priority, scope.scope()),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            scope(&["set", "-5", "--type", "mail"]),
            (-5, PriorityScope::Type("mail".to_owned()))
        );
        assert_eq!(
            scope(&["set", "7", "--definition", "order:3"]),
            (7, PriorityScope::ProcessDefinition("order:3".to_owned()))
        );
        assert_eq!(
            scope(&["set", "7", "--history"]),
            (7, PriorityScope::History)
        );
        assert_eq!(
            scope(&["set", "7", "--default"]),
            (7, PriorityScope::Default)
        );
        for wrong in [
            &["set", "7"][..],
            &["set", "7", "--history", "--default"],
            &["override", "7"],
            &["clear"],
            &["change", "7"],
            &["change", "7", "--batch", "import"],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_rule_is_told_by_all_its_names() {
        let mail = JobDefinition::of("mail").element("e");
        let scope = PriorityScope::Override(mail.process_definition("d"));
        assert_eq!(
            said(&scope),
            "of type `mail` of process definition `d` of element `e` (override)"
        );
    }
}
