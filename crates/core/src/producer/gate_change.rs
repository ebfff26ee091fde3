//! Begins and ends suspensions and pauses, at once or at a date.
//!
//! A change at a date is a job of the type [`SUSPENSION_TYPE`], with its date as due date. Every
//! node of a Jobwire database runs it without registration; its payload is a JSON object:
//!
//! ```json
//! {"action": "resume", "scope": "lane", "value": "bulk"}
//! ```
//!
//! | action | scopes |
//! | --- | --- |
//! | `suspend`, `activate` | `instance`, `definition`, `definition-key` (with a `tenant`, if it has one), `element` (with a `definition`), `type`, `tenant` |
//! | `pause`, `resume` | `type`, `category`, `lane`, `all` (without a value) |
//!
//! A change that is in effect already changes nothing, so a job that runs twice does no harm.
//!
//! The changes of one gate take effect in the order of their dates, also if several are due at once:
//! after a standstill of the fleet for example, or if one of them failed and waits for its retry. Each job
//! names its gate and its date in its custom values, under `jobwire.gate`, and its gate as its process
//! instance, so that an index finds it. The job looks for other changes of its gate that have an earlier date
//! and are open. A beginning waits for them. An end ends what it finds, and
//! runs again as long as an earlier beginning is open. Jobs of earlier programs, and those
//! that `jobwire enqueue` creates, name nothing and are not waited for.
//!
//! The jobs that waited for the end of a suspension or pause are hinted in pages. If the process dies
//! in between, or the broker takes no hints, the sweeper finds the rest.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::job::definition_key::DefinitionKey;
use crate::job::new_job::{MAX_FIELD_BYTES, NewJob};
use crate::job::query::{JobQuery, JobSort, JobView, SortBy};
use crate::job::text::storable;
use crate::job::{Job, JobId, JobState};
use crate::producer::commit_hook::CommitHook;
use crate::producer::hint_room::room;
use crate::store::{Gate, Lifted, SUSPENSION_TYPE, Store, StoreError, SuspensionScope};

/// The two changes of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Begin,
    End,
}

/// The beginning or the end of a suspension or a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateChange {
    gate: Gate,
    change: Change,
}

/// The effect of a [`GateChange`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GateChanged {
    /// False if the change was in effect already.
    pub changed: bool,
    /// Number of jobs that a suspension moved to the suspended table, or its end moved back.
    pub moved: u64,
    /// Number of jobs that waited for the end and were hinted.
    pub hinted: u64,
    /// Jobs that the database refused to move, with the reason. No node locks them before the
    /// suspension ends.
    pub refused: Vec<(JobId, String)>,
}

/// The name of the custom value of a job that changes a gate.
const PLAN: &str = "jobwire.gate";
/// A timer that never failed counts as open if it is due within this time: it waits for another change,
/// or becomes ready just now. One that is due later was given another date.
const SOON: chrono::TimeDelta = chrono::TimeDelta::minutes(1);
/// A timer that failed counts as open if its retry is due within this time.
const RETRIED: chrono::TimeDelta = chrono::TimeDelta::hours(1);
/// Maximum number of changes of one gate that are looked at, those with the earliest due dates first.
const LOOKED_AT: i64 = 1_000;

/// The gate and the date of a change, as its job's custom value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Plan {
    scope: String,
    value: String,
    begins: bool,
    date: DateTime<Utc>,
}

impl Plan {
    fn read(values: Option<&RawValue>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Values {
            #[serde(rename = "jobwire.gate")]
            plan: Plan,
        }
        let read: Values = serde_json::from_str(values?.get()).ok()?;
        Some(read.plan)
    }
}

/// The open changes of a gate with a date before that of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Earlier {
    pub(crate) begins: bool,
    pub(crate) ends: bool,
}

/// The payload of a job that changes a gate.
#[derive(Serialize, Deserialize)]
struct Payload {
    action: String,
    scope: String,
    #[serde(default)]
    value: String,
    /// The process definition of an element.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    definition: String,
    /// The tenant of a definition key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    tenant: String,
}

impl Payload {
    /// Returns the suspension, or `None` if there is no such scope. Fails for a value that is no key.
    fn suspension(&self) -> Result<Option<Gate>, String> {
        if self.scope != "definition-key" {
            let (value, definition) = (self.value.clone(), self.definition.clone());
            return Ok(Gate::suspension(&self.scope, value, definition));
        }
        let key = DefinitionKey::new(&*self.value).map_err(|invalid| {
            format!("field `payload.value` is not the key of a process definition: {invalid}")
        })?;
        let key = key.of_tenant(&*self.tenant);
        Ok(Some(SuspensionScope::DefinitionKey(key).into()))
    }
}

impl GateChange {
    /// Returns the beginning of a suspension or a pause.
    #[must_use]
    pub fn begin(gate: impl Into<Gate>) -> Self {
        let gate = gate.into();
        let change = Change::Begin;
        Self { gate, change }
    }

    /// Returns the end of a suspension or a pause.
    #[must_use]
    pub fn end(gate: impl Into<Gate>) -> Self {
        let gate = gate.into();
        let change = Change::End;
        Self { gate, change }
    }

    /// Returns the suspension or pause.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns `suspend`, `activate`, `pause` or `resume`.
    #[must_use]
    pub fn action(&self) -> &'static str {
        match (&self.gate, self.change) {
            (Gate::Suspension(_), Change::Begin) => "suspend",
            (Gate::Suspension(_), Change::End) => "activate",
            (Gate::Pause(_), Change::Begin) => "pause",
            (Gate::Pause(_), Change::End) => "resume",
        }
    }

    /// Returns the job that makes this change at a date. A date that has passed means at once.
    pub fn at(&self, date: DateTime<Utc>) -> NewJob {
        let payload = Payload {
            action: self.action().to_owned(),
            scope: self.gate.scope().to_owned(),
            value: self.gate.value().to_owned(),
            definition: self.gate.definition().unwrap_or_default().to_owned(),
            tenant: self.gate.tenant().unwrap_or_default().to_owned(),
        };
        let (scope, value) = self.gate.parts();
        let plan = Plan {
            scope: scope.to_owned(),
            value: value.into_owned(),
            begins: self.begins(),
            date,
        };
        let instance = instance(&plan.scope, &plan.value);
        let job = NewJob::of(SUSPENSION_TYPE, &payload).due(date);
        let job = job.instance(instance).concurrent();
        match to_raw_value(&json!({ PLAN: plan })) {
            Ok(values) => job.custom_values(values),
            Err(_) => job,
        }
    }

    /// Returns whether this change begins a suspension or a pause.
    pub(crate) fn begins(&self) -> bool {
        self.change == Change::Begin
    }

    /// Returns which changes of the gate have an earlier date than this job, and are open. The caller looks
    /// before it makes the change: a beginning that is not open any more has committed then.
    ///
    /// # Errors
    /// A database error.
    pub(crate) async fn earlier(store: &dyn Store, own: &Job) -> Result<Earlier, StoreError> {
        let mut earlier = Earlier::default();
        let plan = Plan::read(own.custom_values.as_deref());
        // The custom values of a series name the date of its first occurrence.
        let Some(plan) = plan.filter(|_| own.repeat.is_none()) else {
            return Ok(earlier);
        };
        let of_gate = json!({ PLAN: { "scope": plan.scope, "value": plan.value } });
        let filter = JobQuery::default()
            .instance(instance(&plan.scope, &plan.value))
            .exclusive(false)
            .job_type(SUSPENSION_TYPE)
            .states([JobState::Executable, JobState::Timer])
            .custom_values(of_gate)
            .sort(JobSort::ascending(SortBy::Due))
            .limit(LOOKED_AT);
        // The database's clock has passed the due date of this job; that of the node may be behind it.
        let now = Utc::now().max(own.due_at.unwrap_or_default());
        let open = store.find(&filter).await?.into_iter();
        for view in open.filter(|view| view.id != own.id && is_open(view, now)) {
            // One that is gone meanwhile is made.
            let Some((_, other, _)) = store.get(view.id).await? else {
                continue;
            };
            let Some(its) = Plan::read(other.custom_values.as_deref()) else {
                continue;
            };
            if (its.date, other.id) < (plan.date, own.id) {
                if its.begins {
                    earlier.begins = true;
                } else {
                    earlier.ends = true;
                }
            }
        }
        Ok(earlier)
    }

    /// Reads the payload of a job that changes a gate.
    ///
    /// # Errors
    /// The problem, with the remedy.
    pub fn parse(payload: &str) -> Result<Self, String> {
        let read: Payload = serde_json::from_str(payload).map_err(|error| {
            format!(
                "field `payload` is not an object with `action`, `scope` and `value`: {error}; \
                 create the job anew, with `--at` of `jobwire suspend` for example"
            )
        })?;
        let Payload {
            action,
            scope,
            value,
            definition,
            tenant,
        } = &read;
        let is_all = scope == "all";
        let (gate, change, scopes) = match &**action {
            "suspend" | "activate" => (
                read.suspension()?,
                if action == "suspend" {
                    Change::Begin
                } else {
                    Change::End
                },
                "`instance`, `definition`, `definition-key`, `element`, `type` or `tenant`",
            ),
            "pause" | "resume" => (
                Gate::pause(scope, value.clone()),
                if action == "pause" {
                    Change::Begin
                } else {
                    Change::End
                },
                "`type`, `category`, `lane` or `all`",
            ),
            _ => {
                return Err(format!(
                    "field `payload.action` is `{}`; use `suspend`, `activate`, `pause` or `resume`",
                    action.escape_debug()
                ));
            }
        };
        let Some(gate) = gate else {
            return Err(format!(
                "field `payload.scope` is `{}`; use {scopes} with the action `{action}`",
                scope.escape_debug()
            ));
        };
        if value.is_empty() != is_all {
            return Err(format!(
                "field `payload.value` is `{}`; give the {scope}, and none with the scope `all`",
                value.escape_debug()
            ));
        }
        if definition.is_empty() == (scope == "element") {
            return Err(format!(
                "field `payload.definition` is `{}`; give the process definition with the scope \
                 `element`, and none with another scope",
                definition.escape_debug()
            ));
        }
        if !tenant.is_empty() && scope != "definition-key" {
            return Err(format!(
                "field `payload.tenant` is `{}`; leave it out: only the scope `definition-key` has \
                 one, and the scope `tenant` has its name in `value`",
                tenant.escape_debug()
            ));
        }
        Ok(Self { gate, change })
    }

    /// Makes the change now, and publishes the hints of jobs that became ready.
    ///
    /// # Errors
    /// A database error. If it [changed nothing](StoreError::changed_nothing), the scope is as it
    /// was; otherwise its state is unknown, and the change may be made again.
    pub async fn make(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
    ) -> Result<GateChanged, StoreError> {
        match (&self.gate, self.change) {
            (Gate::Suspension(scope), Change::Begin) => {
                let suspended = store.suspend(scope).await?;
                hook.operated(store, suspended.ready).await;
                Ok(GateChanged {
                    changed: true,
                    moved: suspended.moved,
                    refused: suspended.refused,
                    ..GateChanged::default()
                })
            }
            (Gate::Pause(scope), Change::Begin) => Ok(GateChanged {
                changed: store.pause(scope).await?,
                ..GateChanged::default()
            }),
            (Gate::Suspension(scope), Change::End) => {
                Ok(hint_pages(store, hook, store.activate(scope).await?).await)
            }
            (Gate::Pause(scope), Change::End) => {
                Ok(hint_pages(store, hook, store.resume(scope).await?).await)
            }
        }
    }
}

/// Returns the process instance of the changes of a gate. A long name is cut: the custom values tell the
/// gates apart.
fn instance(scope: &str, value: &str) -> String {
    storable(format!("jobwire.gate {scope} {value}"), MAX_FIELD_BYTES)
}

/// Returns whether a change has been due and is not made yet.
fn is_open(view: &JobView, now: DateTime<Utc>) -> bool {
    let has_failed = view.failures > 0 || view.exception_message.is_some();
    let within = if has_failed { RETRIED } else { SOON };
    view.state == JobState::Executable || view.due_at.is_none_or(|due| due <= now + within)
}

/// Publishes the hints of the first page, and of those that follow.
async fn hint_pages(store: &dyn Store, hook: &CommitHook, mut page: Lifted) -> GateChanged {
    let mut changed = GateChanged {
        changed: page.was_there,
        moved: page.brought_back,
        ..GateChanged::default()
    };
    loop {
        changed.hinted += page.ready.len() as u64;
        hook.operated(store, page.ready).await;
        let Some(next) = page.next else {
            return changed;
        };
        let why = if room(hook).await {
            match store.waited(&next).await {
                Ok(next) => {
                    page = next;
                    continue;
                }
                Err(error) => error.to_string(),
            }
        } else {
            "the broker does not confirm them".to_owned()
        };
        tracing::warn!(
            hinted = changed.hinted,
            why,
            "not all jobs that waited for the end of a suspension or pause could be hinted; the \
             sweeper will find the rest"
        );
        return changed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::PauseScope;

    #[test]
    fn a_change_is_read_back_from_the_payload_of_its_job() {
        let all = Gate::from(PauseScope::All);
        let tenant = Gate::from(SuspensionScope::Tenant("acme".to_owned()));
        let element = Gate::from(SuspensionScope::Element {
            definition: "invoice:3:4711".to_owned(),
            element: "pay".to_owned(),
        });
        let key = DefinitionKey::new("invoice").expect("a key");
        let of_none = Gate::from(SuspensionScope::DefinitionKey(key.clone()));
        let of_acme = Gate::from(SuspensionScope::DefinitionKey(key.of_tenant("acme")));
        for change in [
            GateChange::begin(all.clone()),
            GateChange::end(all),
            GateChange::begin(tenant.clone()),
            GateChange::end(tenant),
            GateChange::begin(element.clone()),
            GateChange::end(element),
            GateChange::begin(of_none),
            GateChange::end(of_acme),
        ] {
            let job = change.at(Utc::now());
            let payload = job.payload.expect("JSON").get().to_owned();
            assert_eq!(GateChange::parse(&payload), Ok(change), "{payload}");
        }
    }

    #[test]
    fn a_bad_payload_is_refused_with_the_field_and_the_remedy() {
        for (payload, said) in [
            ("17", "`payload` is not an object"),
            (
                r#"{"action":"stop","scope":"all"}"#,
                "`payload.action` is `stop`; use `suspend`",
            ),
            (
                r#"{"action":"pause","scope":"tenant","value":"t"}"#,
                "`payload.scope` is `tenant`; use `type`",
            ),
            (
                r#"{"action":"resume","scope":"lane"}"#,
                "`payload.value` is ``; give the lane",
            ),
            (
                r#"{"action":"resume","scope":"all","value":"x"}"#,
                "none with the scope `all`",
            ),
            (
                r#"{"action":"suspend","scope":"element","value":"pay"}"#,
                "`payload.definition` is ``; give the process definition",
            ),
            (
                r#"{"action":"suspend","scope":"tenant","value":"t","definition":"d"}"#,
                "none with another scope",
            ),
            (
                r#"{"action":"suspend","scope":"definition-key","value":"invoice:3:4711"}"#,
                "`payload.value` is not the key of a process definition: field `definition_key` is",
            ),
            (
                r#"{"action":"suspend","scope":"type","value":"mail","tenant":"acme"}"#,
                "`payload.tenant` is `acme`; leave it out",
            ),
        ] {
            let error = GateChange::parse(payload).expect_err(payload);
            assert!(error.contains(said), "{error}");
        }
    }
}
