//! Exclusive jobs: at most one at a time in each process instance, and the eldest first.

use super::{Creation, Invariant, Micros, Report, Violation};
use jobwire_core::{Fence, JobId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A lock on an exclusive job, from its grant until its release or the end of its lease.
#[derive(Clone, Copy, Debug)]
struct LockToken {
    job: JobId,
    order: i64,
    fence: Fence,
    began: Micros,
    from: Micros,
    until: Micros,
}

/// A span in which an exclusive job could have been locked.
#[derive(Clone, Copy, Debug)]
struct Ready {
    job: JobId,
    order: i64,
    since: Micros,
    until: Micros,
}

#[derive(Debug, Default)]
struct Instance {
    held: Vec<LockToken>,
    ready: Vec<Ready>,
}

/// Every instance of a history.
#[derive(Debug, Default)]
pub(super) struct Instances {
    instances: HashMap<Arc<str>, Instance>,
}

impl Instances {
    fn of(&mut self, creation: Option<&Creation>) -> Option<(&mut Instance, i64)> {
        let creation = creation.filter(|creation| creation.exclusive)?;
        let name = creation.instance.clone()?;
        Some((self.instances.entry(name).or_default(), creation.order))
    }

    /// Adds a span in which a job was locked.
    pub(super) fn held(
        &mut self,
        job: JobId,
        creation: Option<&Creation>,
        fence: Fence,
        began: Micros,
        from: Micros,
        until: Micros,
    ) {
        if let Some((instance, order)) = self.of(creation) {
            instance.held.push(LockToken {
                job,
                order,
                fence,
                began,
                from,
                until,
            });
        }
    }

    /// Adds a span in which a job could have been locked.
    pub(super) fn ready(
        &mut self,
        job: JobId,
        creation: Option<&Creation>,
        since: Micros,
        until: Micros,
    ) {
        if let Some((instance, order)) = self.of(creation) {
            instance.ready.push(Ready {
                job,
                order,
                since,
                until,
            });
        }
    }

    /// Judges all instances.
    pub(super) fn judge(self, slack: Micros, report: &mut Report) {
        let mut instances: Vec<_> = self.instances.into_iter().collect();
        instances.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (name, mut instance) in instances {
            instance
                .held
                .sort_unstable_by_key(|held| (held.from, held.fence));
            report.counts.exclusive_locks += instance.held.len() as u64;
            overlaps(&name, &instance.held, report);
            order(&name, &instance, slack, report);
        }
    }
}

fn violation(invariant: Invariant, jobs: Vec<JobId>, what: String) -> Violation {
    Violation {
        invariant,
        jobs,
        what,
        history: Vec::new(),
    }
}

fn overlaps(name: &str, held: &[LockToken], report: &mut Report) {
    let mut last: Option<LockToken> = None;
    for &next in held {
        if let Some(last) = last {
            if next.from < last.until {
                report.add(violation(
                    Invariant::I5,
                    vec![last.job, next.job],
                    format!(
                        "two exclusive jobs of instance {name} were locked at the same time: {last:?} and {next:?}"
                    ),
                ));
            }
            if next.fence <= last.fence {
                report.add(violation(
                    Invariant::I6,
                    vec![last.job, next.job],
                    format!(
                        "the fences of instance {name} do not grow: {} and then {}",
                        last.fence, next.fence
                    ),
                ));
            }
        }
        if last.is_none_or(|last| next.until >= last.until) {
            last = Some(next);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Waits(usize),
    Leaves(usize),
    Locks(usize),
}

/// Checks that no job was locked while an elder one of its instance had been ready for longer than
/// `slack`.
fn order(name: &str, instance: &Instance, slack: Micros, report: &mut Report) {
    let Instance { held, ready } = instance;
    let mut steps = Vec::with_capacity(held.len() + 2 * ready.len());
    for (index, ready) in ready.iter().enumerate() {
        steps.push((ready.since.saturating_add(slack), Step::Waits(index)));
        steps.push((ready.until, Step::Leaves(index)));
    }
    for (index, held) in held.iter().enumerate() {
        steps.push((held.began, Step::Locks(index)));
    }
    steps.sort_unstable();
    // Spans of one job never overlap, but a span that is shorter than the slack ends before it
    // starts to wait.
    let mut waiting: BTreeMap<(i64, usize), Ready> = BTreeMap::new();
    for (_, step) in steps {
        match step {
            Step::Waits(index) => {
                let ready = ready[index];
                if ready.since.saturating_add(slack) < ready.until {
                    waiting.insert((ready.order, index), ready);
                }
            }
            Step::Leaves(index) => {
                waiting.remove(&(ready[index].order, index));
            }
            Step::Locks(index) => {
                let held = held[index];
                let elder = waiting
                    .range(..(held.order, 0))
                    .map(|(_, ready)| ready)
                    .find(|ready| ready.until > held.from);
                if let Some(elder) = elder {
                    report.add(violation(
                        Invariant::I5,
                        vec![elder.job, held.job],
                        format!(
                            "in instance {name} a younger job was locked ({held:?}) although an elder one was \
                             ready ({elder:?})"
                        ),
                    ));
                }
            }
        }
    }
}
