//! The conditions of a query on a job in memory, for stores that can't ask their database.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::job::query::{JobQuery, JobView};
use crate::job::{Job, JobState};

/// A job, and what is known of it beside its row.
#[derive(Clone, Copy, Debug)]
pub struct JobFacts<'j> {
    /// The view.
    pub view: &'j JobView,
    /// The job.
    pub job: &'j Job,
    /// The unique key that the job took last.
    pub unique_key: Option<&'j str>,
    /// Whether a suspension covers the job.
    pub is_covered: bool,
    /// The present time.
    pub now: DateTime<Utc>,
}

impl JobQuery {
    /// Returns whether a job fulfils all conditions. Order and page do not count.
    #[must_use]
    pub fn matches(&self, of: &JobFacts<'_>) -> bool {
        self.matches_names(of)
            && self.matches_numbers(of)
            && self.matches_lock(of)
            && (self.any_of.is_empty() || self.any_of.iter().any(|query| query.matches(of)))
    }

    fn matches_names(&self, of: &JobFacts<'_>) -> bool {
        let (view, job) = (of.view, of.job);
        let custom = || {
            let text = job.custom_values.as_ref().map(|values| values.get());
            text.and_then(|text| serde_json::from_str::<Value>(text).ok())
        };
        self.ids.as_ref().is_none_or(|ids| ids.contains(&view.id))
            && self
                .correlation_id
                .is_none_or(|id| id == view.correlation_id)
            && (self.states.is_empty() || self.states.contains(&view.state))
            && (self.kinds.is_empty() || self.kinds.contains(&view.kind))
            && self
                .texts
                .iter()
                .all(|(field, matches)| matches.matches(field.of(view, job)))
            && self
                .unique_key
                .as_deref()
                .is_none_or(|key| of.unique_key == Some(key))
            && self.batch.is_none_or(|batch| job.batch() == Some(batch))
            && self
                .custom_values
                .as_ref()
                .is_none_or(|wanted| custom().is_some_and(|values| contains(&values, wanted)))
    }

    fn matches_numbers(&self, of: &JobFacts<'_>) -> bool {
        let view = of.view;
        let due = |fits: &dyn Fn(DateTime<Utc>) -> bool| view.due_at.is_some_and(fits);
        self.min_priority.is_none_or(|min| view.priority >= min)
            && self.max_priority.is_none_or(|max| view.priority <= max)
            && self
                .priority_other_than
                .is_none_or(|not| view.priority != not)
            && self.due_before.is_none_or(|before| due(&|at| at < before))
            && self.due_after.is_none_or(|after| due(&|at| at > after))
            && self
                .created_before
                .is_none_or(|before| view.created_at < before)
            && self
                .created_after
                .is_none_or(|after| view.created_at > after)
            && self
                .with_exception
                .is_none_or(|failed| failed == view.exception_message.is_some())
            && self
                .retries_left
                .is_none_or(|left| left == (view.retries > 0))
            && self
                .exclusive
                .is_none_or(|exclusive| exclusive == view.exclusive)
    }

    fn matches_lock(&self, of: &JobFacts<'_>) -> bool {
        let view = of.view;
        // The lock of an engine's node has an expiry and no owner that Jobwire knows.
        let is_locked = view.lock_owner.is_some() || view.lock_expires_at.is_some();
        // No node writes a lease that ends later.
        let longest = of.now + TimeDelta::hours(25);
        let is_expired = view
            .lock_expires_at
            .is_none_or(|end| end <= of.now || end >= longest);
        let is_due = matches!(view.state, JobState::Executable | JobState::Timer)
            && view.due_at.is_none_or(|due| due <= of.now);
        let is_suspended = match view.state {
            JobState::Suspended => true,
            JobState::Executable | JobState::Timer => of.is_covered,
            _ => false,
        };
        self.locked.is_none_or(|locked| locked == is_locked)
            && self
                .lock_owner
                .is_none_or(|owner| view.lock_owner == Some(owner.uuid()))
            && self
                .lock_expired
                .is_none_or(|expired| is_locked && expired == is_expired)
            && (!self.executable || is_due && !is_locked)
            && self
                .suspended
                .is_none_or(|suspended| suspended == is_suspended)
    }
}

/// Returns whether a JSON value contains another one, as `@>` of `jsonb` decides below the first
/// level.
fn contains(value: &Value, wanted: &Value) -> bool {
    match (value, wanted) {
        (Value::Object(fields), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            fields
                .get(name)
                .is_some_and(|value| contains(value, wanted))
        }),
        (Value::Array(values), Value::Array(wanted)) => wanted
            .iter()
            .all(|wanted| values.iter().any(|value| contains(value, wanted))),
        (Value::Number(value), Value::Number(wanted)) => {
            let is_real = value.is_f64() || wanted.is_f64();
            value == wanted || is_real && value.as_f64() == wanted.as_f64()
        }
        _ => value == wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_contains_its_parts() {
        let value = json!({ "a": 1, "b": { "c": "x", "d": null }, "e": [1, { "f": 2, "g": 3 }] });
        for part in [
            json!({}),
            json!({ "a": 1.0 }),
            json!({ "b": {} }),
            json!({ "b": { "d": null } }),
            json!({ "e": [] }),
            json!({ "e": [{ "f": 2 }, 1, 1] }),
        ] {
            assert!(contains(&value, &part), "{part}");
        }
        for other in [
            json!({ "a": "1" }),
            json!({ "b": { "d": false } }),
            json!({ "b": [] }),
            json!({ "e": 1 }),
            json!({ "e": [2] }),
            json!({ "z": null }),
        ] {
            assert!(!contains(&value, &other), "{other}");
        }
    }
}
