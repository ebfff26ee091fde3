//! Limits: how many jobs with one key run at once in the whole fleet.
//!
//! ```
//! use jobwire_core::{HandlerOptions, Handlers, Limit, Outcome, Running};
//!
//! #[derive(serde::Deserialize)]
//! struct Export { table: String }
//!
//! let mut handlers = Handlers::default();
//! let options = HandlerOptions::default().limit(Limit::running(4).per_tenant());
//! handlers.add_with("export", options, |job: Running<Export>| async move {
//!     // At most four exports of one tenant run at once, on all nodes together.
//!     Ok(Outcome::Done)
//! });
//! ```
//!
//! docs/guides/limits.md says what a limit costs and what it promises.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::Value;

use crate::job::Job;
use crate::runtime::panic_place;
use crate::store::permits::PermitKey;

/// Maximum length of a name or key, in bytes. Longer ones are cut.
const TEXT_BYTES: usize = 512;

type Choose = dyn Fn(&Job) -> String + Send + Sync;

/// The way in which a limit finds the key of a job.
#[derive(Clone)]
enum KeyOf {
    /// All jobs have the same key.
    All,
    /// The tenant of the job.
    Tenant,
    /// A field of the job's custom values.
    CustomValue(String),
    /// A function.
    Function(Arc<Choose>),
}

/// A limit of the number of jobs with one key that run at once in the fleet
/// ([`HandlerOptions::limit`](crate::HandlerOptions::limit)).
///
/// Handlers whose limits have the same name share the permits. While programs with different sizes
/// of one limit run, the larger size holds.
#[derive(Clone)]
pub struct Limit {
    size: u32,
    name: Option<String>,
    key: KeyOf,
}

impl Limit {
    /// Limits the number of jobs of the type that run at once in the fleet. 0 counts as 1. 1 means
    /// that the jobs exclude each other.
    #[must_use]
    pub const fn running(size: u32) -> Self {
        Self {
            size,
            name: None,
            key: KeyOf::All,
        }
    }

    /// Shares the permits with all handlers whose limits have this name. Default: the type of the
    /// job. A name longer than 512 bytes is cut.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(fitting(name.into()));
        self
    }

    /// Counts the jobs of each tenant alone. Jobs without a tenant are counted together.
    #[must_use]
    pub fn per_tenant(mut self) -> Self {
        self.key = KeyOf::Tenant;
        self
    }

    /// Counts the jobs of each value of this field of their custom values alone. Jobs without the
    /// field are counted together.
    #[must_use]
    pub fn per_custom_value(mut self, field: impl Into<String>) -> Self {
        self.key = KeyOf::CustomValue(field.into());
        self
    }

    /// Counts the jobs of each key alone, as the function names it. The function is called once for
    /// each start of a job, must be fast, and must return the same key for the same job. If it
    /// panics, the attempt has failed. Keys that do not differ in the first 512 bytes are one key.
    #[must_use]
    pub fn per_key<F>(mut self, choose: F) -> Self
    where
        F: Fn(&Job) -> String + Send + Sync + 'static,
    {
        self.key = KeyOf::Function(Arc::new(choose));
        self
    }

    /// Returns the number of permits of each key.
    pub(crate) fn size(&self) -> i32 {
        i32::try_from(self.size.max(1)).unwrap_or(i32::MAX)
    }

    /// Returns the key of a job. Fails with the message of a panic.
    pub(crate) fn key(&self, job: &Job) -> Result<PermitKey, String> {
        let key = match &self.key {
            KeyOf::All => String::new(),
            KeyOf::Tenant => job.tenant.clone().unwrap_or_default(),
            KeyOf::CustomValue(field) => custom_value(job, field),
            KeyOf::Function(choose) => catch_unwind(AssertUnwindSafe(|| choose(job)))
                .map_err(|panic| panic_place::message(&*panic).to_owned())?,
        };
        Ok(PermitKey {
            limit: fitting(self.name.clone().unwrap_or_else(|| job.job_type.clone())),
            key: fitting(key),
        })
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = match &self.key {
            KeyOf::All => "all",
            KeyOf::Tenant => "tenant",
            KeyOf::CustomValue(field) => field,
            KeyOf::Function(_) => "function",
        };
        f.debug_struct("Limit")
            .field("size", &self.size)
            .field("name", &self.name)
            .field("key", &key)
            .finish()
    }
}

/// Returns a text that every database stores: without NUL, and not too long.
fn fitting(mut text: String) -> String {
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    if text.len() > TEXT_BYTES {
        let end = (0..=TEXT_BYTES).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    text
}

/// Returns a field of the custom values as text; empty if it is missing.
fn custom_value(job: &Job, field: &str) -> String {
    let values = job.custom_values.as_deref();
    let values: Option<Value> = values.and_then(|json| serde_json::from_str(json.get()).ok());
    match values.as_ref().and_then(|values| values.get(field)) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_fits_every_database() {
        assert_eq!(fitting("a\0b".to_owned()), "a\u{fffd}b");
        let long = "ä".repeat(TEXT_BYTES);
        assert_eq!(fitting(long), "ä".repeat(TEXT_BYTES / 2));
        let odd = format!("x{}", "ä".repeat(TEXT_BYTES));
        assert_eq!(fitting(odd).len(), TEXT_BYTES - 1);
    }

    #[test]
    fn a_limit_of_nothing_is_a_limit_of_one() {
        assert_eq!(Limit::running(0).size(), 1);
        assert_eq!(Limit::running(u32::MAX).size(), i32::MAX);
    }
}
