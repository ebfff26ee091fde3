//! The flags that select jobs: one for every part of [`JobFilter`].

use chrono::{DateTime, Utc};
use clap::Args;
use jobwire_core::{JobFilter, JobId, JobState};
use uuid::Uuid;

/// The filters. All that are given must match; without any, all jobs match.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct FilterArgs {
    /// Only this job
    #[arg(long, value_name = "ID", value_parser = super::place::parse)]
    pub id: Option<JobId>,
    /// Only of these states: executable, timer, suspended, dead-letter
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = state)]
    pub states: Vec<JobState>,
    /// Only of this handler type
    #[arg(long = "type", value_name = "TYPE")]
    pub job_type: Option<String>,
    /// Only of this process instance
    #[arg(long, value_name = "NAME")]
    pub process_instance: Option<String>,
    /// Only of this process definition
    #[arg(long, value_name = "NAME")]
    pub process_definition: Option<String>,
    /// Only of this element
    #[arg(long, value_name = "NAME")]
    pub element: Option<String>,
    /// Only of this tenant
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only of this category
    #[arg(long, value_name = "NAME")]
    pub category: Option<String>,
    /// Only with this tag; several times for all of several
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Only of this lane
    #[arg(long, value_name = "LANE")]
    pub lane: Option<String>,
    /// Only with this correlation id
    #[arg(long, value_name = "UUID")]
    pub correlation_id: Option<Uuid>,
    /// Only jobs with (or without: `false`) a valid lease
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub locked: Option<bool>,
    /// Only jobs that failed at least once (or never: `false`)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub with_exception: Option<bool>,
    /// Only jobs due before this date, for example 2026-01-31T08:00:00Z
    #[arg(long, value_name = "DATE", value_parser = crate::commands::date)]
    pub due_before: Option<DateTime<Utc>>,
}

fn state(text: &str) -> Result<JobState, String> {
    JobState::parse(text).ok_or_else(|| {
        let known: Vec<&str> = JobState::ALL.iter().map(|s| s.as_str()).collect();
        format!("write one of {}", known.join(", "))
    })
}

impl FilterArgs {
    pub(super) fn is_given(&self) -> bool {
        *self != FilterArgs::default()
    }

    pub(super) fn filter(self, offset: i64, limit: i64) -> JobFilter {
        let mut filter = JobFilter::default()
            .states(self.states)
            .offset(offset)
            .limit(limit);
        filter.id = self.id;
        filter.job_type = self.job_type;
        filter.process_instance = self.process_instance;
        filter.process_definition = self.process_definition;
        filter.element = self.element;
        filter.tenant = self.tenant;
        filter.category = self.category;
        filter.tags = self.tags;
        filter.lane = self.lane;
        filter.correlation_id = self.correlation_id;
        filter.locked = self.locked;
        filter.with_exception = self.with_exception;
        filter.due_before = self.due_before;
        filter
    }
}
