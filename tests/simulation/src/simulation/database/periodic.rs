//! The periodic jobs.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use jobwire_core::job::periodic::{Declared, InvalidPeriodicJob, Row};
use jobwire_core::store::{
    DuePeriodicJobs, DuePlace, Fired, Origin, PeriodicView, StoreError, Triggered,
};
use jobwire_core::{Calendars, PeriodicJob};

use super::Database;

/// A schedule. The columns that only operators see are left out.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    row: Row,
    paused: bool,
    last_due: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    changed_at: DateTime<Utc>,
}

pub(super) type Schedules = BTreeMap<String, Schedule>;

fn unreadable(name: &str) -> impl FnOnce(jobwire_core::InvalidJob) -> StoreError {
    move |invalid| {
        StoreError::InvalidPeriodicJob(InvalidPeriodicJob {
            name: name.to_owned(),
            invalid,
        })
    }
}

impl Database {
    pub(crate) fn declare_periodic_jobs(
        &mut self,
        jobs: &[PeriodicJob],
    ) -> Result<Vec<Declared>, StoreError> {
        let declarations: Result<Vec<_>, _> = jobs.iter().map(PeriodicJob::declare).collect();
        let declarations = declarations.map_err(StoreError::InvalidPeriodicJob)?;
        let now = self.now();
        let mut result = Vec::with_capacity(declarations.len());
        for declaration in declarations {
            let known = self.schedules.get_mut(&declaration.name);
            let (declared, next_due) = match &known {
                Some(known) => declaration.against(&known.row, now, &Calendars::default()),
                None => {
                    let first = declaration.first(now, &Calendars::default());
                    first.map(|first| (Declared::Created, first))
                }
            }
            .map_err(unreadable(&declaration.name))?;
            result.push(declared);
            let row = Row {
                version: declaration.version,
                schedule: declaration.schedule,
                template: declaration.template,
                next_due,
            };
            match (known, declared) {
                (Some(known), Declared::Changed) => {
                    known.row = row;
                    known.changed_at = now;
                }
                (Some(_), _) => {}
                (None, _) => {
                    let schedule = Schedule {
                        row,
                        paused: false,
                        last_due: None,
                        created_at: now,
                        changed_at: now,
                    };
                    self.schedules.insert(declaration.name, schedule);
                }
            }
        }
        Ok(result)
    }

    pub(crate) fn periodic_jobs(&self) -> Vec<PeriodicView> {
        let view = |(name, schedule): (&String, &Schedule)| PeriodicView {
            name: name.clone(),
            version: schedule.row.version,
            schedule: schedule.row.schedule.clone(),
            template: schedule.row.template.clone(),
            paused: schedule.paused,
            next_due: schedule.row.next_due,
            last_due: schedule.last_due,
            created_at: schedule.created_at,
            changed_at: schedule.changed_at,
        };
        self.schedules.iter().map(view).collect()
    }

    pub(crate) fn pause_periodic_job(
        &mut self,
        name: &str,
        paused: bool,
    ) -> Result<bool, StoreError> {
        let now = self.now();
        let Some(schedule) = self.schedules.get_mut(name) else {
            return Ok(false);
        };
        if schedule.paused != paused || !paused && schedule.row.next_due.is_none() {
            if !paused {
                schedule.row.next_due = schedule
                    .row
                    .resumed(now, &Calendars::default())
                    .map_err(unreadable(name))?;
            }
            schedule.paused = paused;
            schedule.changed_at = now;
        }
        Ok(true)
    }

    pub(crate) fn remove_periodic_job(&mut self, name: &str) -> bool {
        self.schedules.remove(name).is_some()
    }

    pub(crate) fn run_periodic_job(
        &mut self,
        name: &str,
        origin: Origin,
    ) -> Result<Option<Triggered>, StoreError> {
        let Some(schedule) = self.schedules.get(name) else {
            return Ok(None);
        };
        let job = schedule.row.job().map_err(unreadable(name))?;
        let id = job.id();
        let created = self.create(vec![job], origin)?;
        Ok(Some(Triggered {
            job: id,
            ready: created.ready,
        }))
    }

    pub(super) fn next_periodic(&self) -> Option<DateTime<Utc>> {
        let running = self.schedules.values().filter(|schedule| !schedule.paused);
        running.filter_map(|schedule| schedule.row.next_due).min()
    }

    pub(crate) fn due_periodic_jobs(
        &mut self,
        after: Option<&DuePlace>,
        at_most: i64,
    ) -> DuePeriodicJobs {
        let now = self.now();
        let running = self.schedules.iter().filter(|(_, s)| !s.paused);
        let dated = running.filter_map(|(name, s)| Some((s.row.next_due?, name)));
        let (mut due, later): (Vec<_>, Vec<_>) = dated.partition(|(at, _)| *at <= now);
        due.sort_unstable();
        let places = due.into_iter().map(|(due, name)| DuePlace {
            due,
            name: name.clone(),
        });
        let is_behind = |place: &DuePlace| {
            after.is_none_or(|after| (place.due, &place.name) > (after.due, &after.name))
        };
        let at_most = usize::try_from(at_most).unwrap_or(0);
        let page: Vec<DuePlace> = places.filter(is_behind).take(at_most).collect();
        DuePeriodicJobs {
            changed: page
                .iter()
                .filter_map(|place| Some(self.schedules.get(&place.name)?.changed_at.to_string()))
                .collect(),
            names: page.iter().map(|place| place.name.clone()).collect(),
            last: page.last().cloned(),
            next_due: later.into_iter().map(|(at, _)| at).min(),
            now,
        }
    }

    pub(crate) fn fire_periodic_job(&mut self, name: &str) -> Result<Fired, StoreError> {
        let now = self.now();
        let Some(schedule) = self.schedules.get(name).filter(|s| !s.paused) else {
            return Ok(Fired::default());
        };
        let firing = schedule.row.fire(now, &Calendars::default());
        let firing = firing.map_err(unreadable(name))?;
        let Some(last) = firing.last else {
            return Ok(Fired::default());
        };
        let created = self.create(firing.jobs, Origin::Hook)?;
        if let Some(schedule) = self.schedules.get_mut(name) {
            schedule.row.next_due = firing.next;
            schedule.last_due = Some(last);
        }
        Ok(Fired {
            ready: created.ready,
            advanced: true,
            next: firing.next,
            missed: firing.missed,
            ..Fired::default()
        })
    }
}
