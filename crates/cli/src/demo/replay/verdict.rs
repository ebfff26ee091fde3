//! Checks that every event ran once, and that the events of each case ran one at a time and in
//! order, from the rows that the jobs wrote in the transactions that completed them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::demo::account::{Account, Check, Latency};
use crate::demo::event_log::Event;
use crate::demo::ledger::Entry;
use crate::demo::stage::Stage;

use super::Created;

/// The facts about a replay.
pub(super) struct Facts<'a> {
    pub(super) events: &'a [Event],
    pub(super) created: &'a [Created],
    pub(super) rows: Vec<Entry>,
    pub(super) left: u64,
    pub(super) dead: u64,
}

impl Facts<'_> {
    pub(super) fn account(&self, stage: &Stage, nodes: usize, seconds: f64) -> Account {
        Account {
            run: "replay",
            database: stage.database_name(),
            broker: stage.settings.broker_url.to_string(),
            nodes,
            nodes_at_work: self
                .rows
                .iter()
                .map(|r| r.node)
                .collect::<HashSet<_>>()
                .len(),
            seconds,
            cases: self
                .events
                .iter()
                .map(|e| &e.case)
                .collect::<HashSet<_>>()
                .len(),
            created: self.created.len() as u64,
            rolled_back: 0,
            executed: self
                .rows
                .iter()
                .map(|r| r.job)
                .collect::<HashSet<_>>()
                .len() as u64,
            retried: None,
            timers: None,
            dead_lettered: self.dead,
            left: self.left,
            commit_to_start: self.latency(),
            timer_lateness: None,
            checks: self.checks(),
        }
    }

    fn latency(&self) -> Latency {
        let committed: HashMap<_, _> = self
            .created
            .iter()
            .map(|c| (c.id, c.committed_at))
            .collect();
        let waited = self.rows.iter().filter_map(|row| {
            let waited = row.started_at - *committed.get(&row.job)?;
            // The job may start before its creator has read the clock.
            Some(waited.to_std().unwrap_or(Duration::ZERO))
        });
        Latency::of(waited.collect())
    }

    fn checks(&self) -> Vec<Check> {
        vec![
            Check::equal(
                "every event of the log became a job",
                ("events", self.events.len() as u64),
                ("jobs", self.created.len() as u64),
            ),
            Check::of("every job wrote exactly one row, its own", self.once()),
            Check::of(
                "every case's events ran in order, each locked after the one before it",
                self.in_order(),
            ),
            Check::of("no two events of a case overlapped", self.one_at_a_time()),
            Check::equal(
                "created = executed + dead-lettered + left",
                ("created", self.created.len() as u64),
                (
                    "accounted for",
                    self.rows.len() as u64 + self.dead + self.left,
                ),
            ),
            Check::equal(
                "no job is left in any table",
                ("left", self.left + self.dead),
                ("expected", 0),
            ),
        ]
    }

    fn once(&self) -> Vec<String> {
        let mut rows: HashMap<_, Vec<&Entry>> = HashMap::new();
        for row in &self.rows {
            rows.entry(row.job).or_default().push(row);
        }
        let mut problems = Vec::new();
        for created in self.created {
            let Some(event) = self.events.get(created.event) else {
                continue;
            };
            match rows.get(&created.id).map(Vec::as_slice) {
                None => problems.push(format!("no row of {} in {}", event.position, event.case)),
                Some([row]) => {
                    if row.case != event.case
                        || row.activity != event.activity
                        || row.position != event.position
                    {
                        problems.push(format!(
                            "a wrong row of {} in {}",
                            event.position, event.case
                        ));
                    }
                }
                Some(more) => problems.push(format!(
                    "{} rows of {} in {}",
                    more.len(),
                    event.position,
                    event.case
                )),
            }
        }
        problems
    }

    /// Returns the rows of each case by position.
    fn cases(&self) -> BTreeMap<&str, Vec<&Entry>> {
        let mut cases: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for row in &self.rows {
            cases.entry(&row.case).or_default().push(row);
        }
        for rows in cases.values_mut() {
            rows.sort_by_key(|row| row.position);
        }
        cases
    }

    fn neighbours(&self, wrong: impl Fn(&Entry, &Entry) -> bool) -> Vec<String> {
        let mut problems = Vec::new();
        for (case, rows) in self.cases() {
            for (before, after) in rows.iter().zip(rows.iter().skip(1)) {
                if wrong(before, after) {
                    problems.push(format!(
                        "{} and {} of {case}",
                        before.position, after.position
                    ));
                }
            }
        }
        problems
    }

    /// Checks the order by fences, which grow with each lock and order locks even when clocks are
    /// too coarse.
    fn in_order(&self) -> Vec<String> {
        self.neighbours(|before, after| {
            after.fence <= before.fence || after.started_at < before.started_at
        })
    }

    /// Checks for overlaps in the order of starts, not of positions: an event out of order may
    /// overlap with any other.
    fn one_at_a_time(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (case, mut rows) in self.cases() {
            rows.sort_by_key(|row| (row.started_at, row.ended_at, row.fence));
            for (before, after) in rows.iter().zip(rows.iter().skip(1)) {
                if after.started_at < before.ended_at {
                    problems.push(format!(
                        "{} and {} of {case}",
                        before.position, after.position
                    ));
                }
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use jobwire_core::JobId;
    use uuid::Uuid;

    use super::*;

    fn at(millis: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(millis).unwrap()
    }

    struct Fixture {
        events: Vec<Event>,
        created: Vec<Created>,
        rows: Vec<Entry>,
    }

    /// Three events of one case, each running for 5 ms, 10 ms apart.
    fn fixture() -> Fixture {
        let event = |position| Event {
            activity: "A".to_owned(),
            case: "case".to_owned(),
            position,
            at: at(0),
            resource: None,
        };
        let events: Vec<Event> = (1..=3).map(event).collect();
        let created: Vec<Created> = (0..3)
            .map(|event| Created {
                event,
                id: JobId::generate(),
                committed_at: at(0),
            })
            .collect();
        let rows = (1..=3)
            .zip(&created)
            .map(|(n, created)| Entry {
                job: created.id,
                case: "case".to_owned(),
                activity: "A".to_owned(),
                position: n,
                fence: n,
                node: Uuid::nil(),
                started_at: at(n * 10),
                ended_at: at(n * 10 + 5),
            })
            .collect();
        Fixture {
            events,
            created,
            rows,
        }
    }

    fn failed(fixture: &Fixture, left: u64, dead: u64) -> Vec<&'static str> {
        let facts = Facts {
            events: &fixture.events,
            created: &fixture.created,
            rows: fixture.rows.clone(),
            left,
            dead,
        };
        facts
            .checks()
            .into_iter()
            .filter(|c| !c.holds)
            .map(|c| c.what)
            .collect()
    }

    #[test]
    fn a_clean_replay_passes() {
        assert!(failed(&fixture(), 0, 0).is_empty());
    }

    #[test]
    fn each_fault_is_seen() {
        let mut twice = fixture();
        twice.rows.push(twice.rows[0].clone());
        assert!(failed(&twice, 0, 0).contains(&"every job wrote exactly one row, its own"));

        let mut missing = fixture();
        missing.rows.pop();
        assert!(failed(&missing, 0, 0).contains(&"every job wrote exactly one row, its own"));
        assert!(failed(&missing, 0, 0).contains(&"created = executed + dead-lettered + left"));
        assert!(failed(&missing, 1, 0).contains(&"no job is left in any table"));
        assert!(failed(&missing, 0, 1).contains(&"no job is left in any table"));

        let mut wrong = fixture();
        wrong.rows[1].activity = "B".to_owned();
        assert_eq!(
            failed(&wrong, 0, 0),
            ["every job wrote exactly one row, its own"]
        );

        let mut swapped = fixture();
        swapped.rows[0].fence = 9;
        assert_eq!(
            failed(&swapped, 0, 0),
            ["every case's events ran in order, each locked after the one before it"]
        );

        let mut overlap = fixture();
        overlap.rows[0].ended_at = at(21);
        assert_eq!(
            failed(&overlap, 0, 0),
            ["no two events of a case overlapped"]
        );

        let mut unborn = fixture();
        unborn.created.pop();
        unborn.rows.pop();
        assert_eq!(
            failed(&unborn, 0, 0),
            ["every event of the log became a job"]
        );
    }
}
