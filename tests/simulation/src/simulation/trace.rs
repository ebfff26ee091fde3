//! The trace of a run, line by line, with names that are the same in each run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jobwire_core::{JobId, NodeId};
use tokio::time::Instant;

use crate::history::Event;

#[derive(Debug)]
struct Lines {
    start: Instant,
    text: String,
    jobs: BTreeMap<JobId, usize>,
    nodes: Vec<NodeId>,
}

/// The trace; empty unless the run is traced.
#[derive(Debug, Default)]
pub(super) struct Trace(Option<Mutex<Lines>>);

impl Trace {
    pub(super) fn begin() -> Trace {
        Trace(Some(Mutex::new(Lines {
            start: Instant::now(),
            text: String::new(),
            jobs: BTreeMap::new(),
            nodes: Vec::new(),
        })))
    }

    fn lines(&self) -> Option<MutexGuard<'_, Lines>> {
        let lines = self.0.as_ref()?;
        Some(lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives a node a number as its name.
    pub(super) fn node(&self, id: NodeId) {
        if let Some(mut lines) = self.lines() {
            lines.nodes.push(id);
        }
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.0.is_some() {
            // May ask for the names of jobs, so it runs before the lock.
            let what = what();
            if let Some(mut lines) = self.lines() {
                lines.write(&what);
            }
        }
    }

    pub(super) fn happened(&self, job: JobId, event: &Event) {
        let Some(mut lines) = self.lines() else {
            return;
        };
        let name = lines.job(job);
        let text = match event {
            // Without its ids, which differ in each run.
            Event::Created(made) => {
                let (due, instance) = (made.due, &made.instance);
                format!(
                    "Created {{ order: {}, due: {due:?}, instance: {instance:?} }}",
                    made.order
                )
            }
            event => format!("{event:?}"),
        };
        lines.write(&format!("{name} {text}"));
    }

    /// Returns the name of a job.
    pub(super) fn job(&self, id: JobId) -> String {
        self.lines()
            .map_or_else(String::new, |mut lines| lines.job(id))
    }

    pub(super) fn text(&self) -> String {
        self.lines()
            .map_or_else(String::new, |lines| lines.text.clone())
    }
}

impl Lines {
    fn job(&mut self, id: JobId) -> String {
        let next = self.jobs.len() + 1;
        format!("j{}", self.jobs.entry(id).or_insert(next))
    }

    fn write(&mut self, what: &str) {
        let mut text = what.to_owned();
        for (at, id) in self.nodes.iter().enumerate() {
            text = text.replace(&format!("NodeId({})", id.uuid()), &format!("n{}", at + 1));
        }
        let at = self.start.elapsed();
        let _ = writeln!(
            self.text,
            "{:>4}.{:06} {text}",
            at.as_secs(),
            at.subsec_micros()
        );
    }
}
