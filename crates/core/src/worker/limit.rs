//! Limits: how many jobs with one key run at once in the whole fleet, or start in a period.
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
//! A limit of a rate:
//!
//! ```
//! use std::time::Duration;
//! use jobwire_core::{HandlerOptions, Limit};
//!
//! // No more than 100 jobs of each tenant start in any second, and at most 20 in any fifth of it.
//! let limit = Limit::rate(100, Duration::from_secs(1)).burst(20).per_tenant();
//! let options = HandlerOptions::default().limit(limit);
//! ```
//!
//! docs/guides/limits.md says what a limit costs and what it promises.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::job::Job;
use crate::runtime::panic_place;
use crate::store::permits::{PermitKey, fitting};
use crate::worker::permits::Terms;

type Choose = dyn Fn(&Job) -> String + Send + Sync;

/// The way in which a limit finds a key of a job.
#[derive(Clone)]
enum KeyOf {
    /// All jobs have the same key.
    All,
    /// The tenant of the job.
    Tenant,
    /// The category of the job.
    Category,
    /// A field of the job's custom values.
    CustomValue(String),
    /// A function.
    Function(Arc<Choose>),
}

impl KeyOf {
    /// Returns the key of a job. Fails with the message of a panic.
    fn of(&self, job: &Job) -> Result<String, String> {
        let key = match self {
            Self::All => String::new(),
            Self::Tenant => job.tenant.clone().unwrap_or_default(),
            Self::Category => job.category.clone().unwrap_or_default(),
            Self::CustomValue(field) => custom_value(job, field),
            Self::Function(choose) => catch_unwind(AssertUnwindSafe(|| choose(job)))
                .map_err(|panic| panic_place::message(&*panic).to_owned())?,
        };
        Ok(fitting(key))
    }
}

impl fmt::Debug for KeyOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Tenant => "tenant",
            Self::Category => "category",
            Self::CustomValue(field) => field,
            Self::Function(_) => "function",
        })
    }
}

/// The longest cool-down of a permit.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The kind of a limit.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// Jobs that run at once.
    Running(u32),
    /// Jobs that start in a period, and how many of them start at once.
    Rate {
        number: u32,
        period: Duration,
        burst: Option<u32>,
    },
}

/// A limit of the jobs with one key in the fleet ([`HandlerOptions::limit`](crate::HandlerOptions::limit)):
/// of the number that runs at once, or of the number that starts in a period.
///
/// Handlers whose limits have the same name share the permits, and should have the same limit. While
/// programs with different limits of one name run, each keeps to its own, so the more generous one
/// holds.
#[derive(Clone, Debug)]
pub struct Limit {
    of: Of,
    name: Option<String>,
    key: KeyOf,
    fair: Option<KeyOf>,
}

impl Limit {
    /// Limits the number of jobs of the type that run at once in the fleet. 0 counts as 1. 1 means
    /// that the jobs exclude each other.
    #[must_use]
    pub const fn running(size: u32) -> Self {
        Self::of(Of::Running(size))
    }

    /// Limits the number of jobs of the type that start in the fleet: never more than `number` in any
    /// period of this length. Each start of a handler counts, also that of a retry. 0 counts as 1, and
    /// a period of less than a millisecond as one.
    ///
    /// A smaller [burst](Self::burst) spreads the starts. `number` jobs may start at once without it. A
    /// larger burst lets more start at once: of 100 a second with a burst of 300, 300 jobs may start at
    /// once, and then none for three seconds (`burst * period / number`).
    ///
    /// The period that belongs to the burst (`burst * period / number`) is a day at most. A node with a
    /// longer one does not start.
    #[must_use]
    pub const fn rate(number: u32, period: Duration) -> Self {
        Self::of(Of::Rate {
            number,
            period,
            burst: None,
        })
    }

    const fn of(of: Of) -> Self {
        Self {
            of,
            name: None,
            key: KeyOf::All,
            fair: None,
        }
    }

    /// Sets how many jobs of a [rate](Self::rate) may start at once: never more than `burst` start in
    /// any period of `burst * period / number`. 0 counts as 1. Default: the number of the rate. A limit
    /// of running jobs has no burst.
    ///
    /// A burst larger than the number lets that many start at once, and then none until they have cooled
    /// down, so in one period there may be more starts than the number.
    ///
    /// While jobs wait, each start waits for a message between the database and a node. So a burst of
    /// less than what the rate gives in a tenth of a second lets fewer jobs start than the rate says.
    #[must_use]
    pub fn burst(mut self, burst: u32) -> Self {
        if let Of::Rate { burst: of, .. } = &mut self.of {
            *of = Some(burst);
        }
        self
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

    /// Counts the jobs of each category alone. Jobs without a category are counted together.
    #[must_use]
    pub fn per_category(mut self) -> Self {
        self.key = KeyOf::Category;
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

    /// Lets the tenants take turns while jobs wait for a permit of one key: one job of each tenant, and
    /// then the next of each. Jobs without a tenant take turns as one. So the many jobs of one tenant
    /// hold up no other tenant, and a tenant alone has all permits. Default: creation order.
    ///
    /// ```
    /// use jobwire_core::Limit;
    ///
    /// // Ten reports at once, and no tenant waits for all reports of another one.
    /// let limit = Limit::running(10).fair_per_tenant();
    /// ```
    #[must_use]
    pub fn fair_per_tenant(mut self) -> Self {
        self.fair = Some(KeyOf::Tenant);
        self
    }

    /// Lets the categories take turns, like [`fair_per_tenant`](Self::fair_per_tenant). Jobs without a
    /// category take turns as one.
    #[must_use]
    pub fn fair_per_category(mut self) -> Self {
        self.fair = Some(KeyOf::Category);
        self
    }

    /// Lets the values of this field of the custom values take turns, like
    /// [`fair_per_tenant`](Self::fair_per_tenant). Jobs without the field take turns as one.
    #[must_use]
    pub fn fair_per_custom_value(mut self, field: impl Into<String>) -> Self {
        self.fair = Some(KeyOf::CustomValue(field.into()));
        self
    }

    /// Lets the keys that the function names take turns, like [`fair_per_tenant`](Self::fair_per_tenant).
    /// The function has the conditions of [`per_key`](Self::per_key).
    #[must_use]
    pub fn fair_per_key<F>(mut self, choose: F) -> Self
    where
        F: Fn(&Job) -> String + Send + Sync + 'static,
    {
        self.fair = Some(KeyOf::Function(Arc::new(choose)));
        self
    }

    /// Returns the number of permits of each key, and how long they cool down.
    pub(crate) fn terms(&self) -> Terms {
        let size = |of: u32| i32::try_from(of.max(1)).unwrap_or(i32::MAX);
        match self.of {
            Of::Running(of) => Terms {
                size: size(of),
                cool_down: Duration::ZERO,
            },
            Of::Rate {
                number,
                period,
                burst,
            } => {
                let size = size(burst.unwrap_or(number));
                let period = period.max(Duration::from_millis(1)).as_nanos();
                let cool_down = period
                    .saturating_mul(u128::from(size.unsigned_abs()))
                    .div_ceil(u128::from(number.max(1)));
                Terms {
                    size,
                    cool_down: Duration::from_nanos(u64::try_from(cool_down).unwrap_or(u64::MAX)),
                }
            }
        }
    }

    /// Checks that the database can keep the permits. Fails with the remedy.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.terms().cool_down <= LONGEST {
            return Ok(());
        }
        Err("the period of a rate (`Limit::rate`) is longer than a day; choose a shorter one, or a \
             smaller burst (`Limit::burst`)"
            .to_owned())
    }

    /// Returns the name of the limit of a handler of this type.
    pub(crate) fn name_for(&self, job_type: &str) -> String {
        fitting(self.name.clone().unwrap_or_else(|| job_type.to_owned()))
    }

    /// Returns the key of a job. Fails with the message of a panic.
    pub(crate) fn key(&self, job: &Job) -> Result<PermitKey, String> {
        Ok(PermitKey {
            limit: self.name_for(&job.job_type),
            key: self.key.of(job)?,
        })
    }

    /// Returns the key by which a job takes turns, if the limit is fair. Fails with the message of a
    /// panic.
    pub(crate) fn fair_key(&self, job: &Job) -> Result<Option<String>, String> {
        self.fair.as_ref().map(|fair| fair.of(job)).transpose()
    }
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

    fn terms(limit: &Limit) -> (i32, Duration) {
        let Terms { size, cool_down } = limit.terms();
        (size, cool_down)
    }

    #[test]
    fn a_limit_of_nothing_is_a_limit_of_one() {
        assert_eq!(terms(&Limit::running(0)), (1, Duration::ZERO));
        assert_eq!(Limit::running(u32::MAX).terms().size, i32::MAX);
        let nothing = Limit::rate(0, Duration::ZERO).burst(0);
        assert_eq!(terms(&nothing), (1, Duration::from_millis(1)));
    }

    #[test]
    fn a_permit_of_a_rate_cools_down_for_the_period_of_its_burst() {
        let minute = Duration::from_secs(60);
        let rate = Limit::rate(100, minute);
        assert_eq!(terms(&rate), (100, minute));
        assert_eq!(terms(&rate.clone().burst(5)), (5, Duration::from_secs(3)));
        assert_eq!(terms(&rate.burst(200)), (200, minute * 2));
        let third = Limit::rate(3, Duration::from_secs(1)).burst(1);
        assert_eq!(third.terms().cool_down, Duration::from_nanos(333_333_334));
        assert_eq!(terms(&Limit::running(2).burst(7)), (2, Duration::ZERO));
    }

    #[test]
    fn a_rate_of_more_than_a_day_is_refused() {
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(Limit::rate(1_000, day).check(), Ok(()));
        assert_eq!(Limit::rate(7, day * 7).burst(1).check(), Ok(()));
        let said = Limit::rate(1, day * 2).check().expect_err("two days");
        assert!(said.contains("`Limit::burst`"), "{said}");
        assert!(
            Limit::rate(1, Duration::MAX)
                .burst(u32::MAX)
                .check()
                .is_err()
        );
    }
}
