//! The protocol of exclusive jobs as a state machine: each statement of the store is one step, a
//! transaction is several, and anything may happen between two steps. The door is the instance's
//! row.
//!
//! Time is left out: a lease may end at any moment, which is the worst that clocks and freezes can
//! do, and a frozen node is one that takes no step. Hints are a set, so they come in any order.
//! Failures are counted, so that the search ends.

use std::hash::Hash;

pub(super) const NODES: usize = 2;
pub(super) const JOBS: usize = 3;

/// A mistake that the model must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mistake {
    CompletesWithoutGuard,
    SkipsTheDoor,
    TakesLivingLeases,
    ForgetsTheHandOver,
    ResetsLivingLeases,
    ReleasesWithoutGuard,
    RenewsWithoutOwner,
    NeverLooksForOrphans,
    TakesTheHintedJob,
    FenceCountsAttempts,
}

/// The place of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// The creating transaction has not committed yet.
    Uncreated,
    Executable,
    /// The job waits for its retry.
    Waiting,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lease {
    /// `None` after the leader cycle has cleared it.
    pub(super) owner: Option<u8>,
    pub(super) fence: u8,
    pub(super) lives: bool,
}

/// The end of a job on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Doing {
    Completing,
    Failing,
    Releasing,
}

/// An open transaction. It has the instance's row locked, and other transactions see its changes
/// after its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Open {
    /// The instance's row is locked, to try the instance.
    Trying { hint: u8 },
    /// The instance's row is locked, to change this job.
    Entered { job: u8, fence: u8, doing: Doing },
    /// The guarded statement has changed the job, or not.
    Changed {
        job: u8,
        fence: u8,
        doing: Doing,
        held: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// Grows with each start.
    pub(super) id: u8,
    pub(super) open: Option<Open>,
    /// The fences that the node takes for valid, by job.
    pub(super) holds: [Option<u8>; JOBS],
}

/// The failures that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) crashes: u8,
    pub(super) lost: u8,
    pub(super) doubled: u8,
    pub(super) expiries: u8,
    pub(super) failures: u8,
    pub(super) releases: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) jobs: [Place; JOBS],
    pub(super) leases: [Option<Lease>; JOBS],
    /// The holder of the instance: a job and its fence.
    pub(super) door: Option<(u8, u8)>,
    /// Hints under way, as a set of jobs.
    pub(super) hints: u8,
    pub(super) nodes: [Node; NODES],
    pub(super) fence: u8,
    pub(super) budget: Budget,
    pub(super) completions: [u8; JOBS],
    pub(super) granted: [u8; JOBS],
    pub(super) stale: bool,
    pub(super) overtaken: bool,
    pub(super) robbed: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// A transaction that created a job commits; its hint is published, or is not.
    Create { hinted: bool },
    /// A node receives a hint and locks the instance's row.
    Enter { node: u8, hint: u8 },
    /// The statement that locks the first ready job; the transaction commits, and the hint is
    /// settled, unless the settlement is lost.
    TakeFirst { node: u8, settles: bool },
    /// A job comes to its end: a transaction begins and locks the instance's row.
    Begin { node: u8, job: u8, doing: Doing },
    /// The guarded statement.
    Change { node: u8 },
    /// The instance is handed over; the transaction commits.
    Handoff { node: u8 },
    /// A lease is renewed after it has ended and before a leader cycle has looked at it.
    Renew { node: u8, job: u8 },
    /// The leader cycle resets an ended lease and hints the job.
    Reset { job: u8, hinted: bool },
    /// A marker is back: a ready and unblocked job without a hint is hinted again.
    Sweep { job: u8 },
    /// A retry is due.
    Due { job: u8, hinted: bool },
    /// A lease ends although its holder lives: the node is frozen, or cannot reach the database.
    Expire { job: u8 },
    /// A lease that no node renews ends.
    RunOut { job: u8 },
    /// A hint is lost.
    Lose { hint: u8 },
    /// A node dies, and its successor starts.
    Crash { node: u8 },
}

impl Step {
    /// Returns whether this is bad luck, on which nothing may depend.
    pub(super) fn is_bad_luck(self) -> bool {
        matches!(
            self,
            Step::Expire { .. }
                | Step::Lose { .. }
                | Step::Crash { .. }
                | Step::Create { hinted: false }
                | Step::Reset { hinted: false, .. }
                | Step::Due { hinted: false, .. }
                | Step::TakeFirst { settles: false, .. }
                | Step::Begin {
                    doing: Doing::Failing | Doing::Releasing,
                    ..
                }
        )
    }

    /// Returns whether this is a step of the sweeper.
    pub(super) fn is_healing(self) -> bool {
        matches!(self, Step::Sweep { .. } | Step::Reset { .. })
    }
}

const JOB_NUMBERS: [u8; JOBS] = [0, 1, 2];
const NODE_NUMBERS: [u8; NODES] = [0, 1];

fn at(number: u8) -> usize {
    usize::from(number)
}

impl State {
    pub(super) fn new(budget: Budget) -> State {
        let node = |id| Node {
            id,
            open: None,
            holds: [None; JOBS],
        };
        State {
            jobs: [Place::Uncreated; JOBS],
            leases: [None; JOBS],
            door: None,
            hints: 0,
            nodes: [node(0), node(1)],
            fence: 0,
            budget,
            completions: [0; JOBS],
            granted: [0; JOBS],
            stale: false,
            overtaken: false,
            robbed: false,
        }
    }

    fn is_hinted(&self, job: u8) -> bool {
        self.hints & (1 << job) != 0
    }

    /// Returns whether the lease names an owner, which only the leader cycle or the owner changes.
    fn owned(&self, job: u8) -> bool {
        self.leases[at(job)].is_some_and(|lease| lease.owner.is_some())
    }

    /// Returns whether an open transaction has the instance's row locked.
    fn is_door_locked(&self) -> bool {
        self.nodes.iter().any(|node| node.open.is_some())
    }

    /// Returns whether the lease that the door names has an owner.
    fn is_held(&self) -> bool {
        self.door.is_some_and(|(job, fence)| {
            self.leases[at(job)].is_some_and(|lease| lease.fence == fence) && self.owned(job)
        })
    }

    /// Returns the first ready job in creation order.
    fn first(&self, besides_living: bool) -> Option<u8> {
        JOB_NUMBERS.into_iter().find(|job| {
            self.jobs[at(*job)] == Place::Executable && (besides_living || !self.owned(*job))
        })
    }

    /// Returns whether a living node knows of this lock.
    fn is_believed(&self, of: u8, lock: u8) -> bool {
        self.nodes.iter().any(|node| {
            node.holds[at(of)] == Some(lock)
                || matches!(
                    node.open,
                    Some(Open::Entered { job, fence, .. } | Open::Changed { job, fence, .. })
                        if job == of && fence == lock
                )
        })
    }

    /// Returns whether an open transaction has changed this lease's row.
    fn is_row_locked(&self, of: u8) -> bool {
        self.nodes.iter().any(
            |node| matches!(node.open, Some(Open::Changed { job, held: true, .. }) if job == of),
        )
    }

    /// Returns whether a node trusts a lock that another node has taken over.
    pub(super) fn is_taken_over(&self) -> bool {
        let older = |node: &Node, job: u8| {
            let held = node.holds[at(job)];
            held.is_some_and(|fence| fence < self.granted[at(job)])
        };
        self.nodes
            .iter()
            .any(|node| JOB_NUMBERS.into_iter().any(|job| older(node, job)))
    }

    /// Returns whether a change is about to be refused.
    pub(super) fn is_refused(&self) -> bool {
        let refused = |node: &Node| matches!(node.open, Some(Open::Changed { held: false, .. }));
        self.nodes.iter().any(refused)
    }

    pub(super) fn all_done(&self) -> bool {
        self.jobs.iter().all(|place| *place == Place::Done)
    }

    pub(super) fn owned_leases(&self) -> usize {
        JOB_NUMBERS
            .into_iter()
            .filter(|job| self.owned(*job))
            .count()
    }

    /// Returns everything that may happen next.
    pub(super) fn steps(&self, mistake: Option<Mistake>) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.jobs.contains(&Place::Uncreated) {
            steps.push(Step::Create { hinted: true });
            if self.budget.lost > 0 {
                steps.push(Step::Create { hinted: false });
            }
        }
        for node in NODE_NUMBERS {
            self.steps_of(node, mistake, &mut steps);
        }
        for job in JOB_NUMBERS {
            self.steps_around(job, mistake, &mut steps);
        }
        steps
    }

    fn steps_of(&self, node: u8, mistake: Option<Mistake>, steps: &mut Vec<Step>) {
        let its = &self.nodes[at(node)];
        if self.budget.crashes > 0 {
            steps.push(Step::Crash { node });
        }
        match its.open {
            Some(Open::Trying { .. }) => {
                steps.push(Step::TakeFirst {
                    node,
                    settles: true,
                });
                if self.budget.doubled > 0 {
                    steps.push(Step::TakeFirst {
                        node,
                        settles: false,
                    });
                }
            }
            Some(Open::Entered { .. }) => steps.push(Step::Change { node }),
            Some(Open::Changed { .. }) => steps.push(Step::Handoff { node }),
            None if !self.is_door_locked() => {
                for hint in JOB_NUMBERS.into_iter().filter(|job| self.is_hinted(*job)) {
                    steps.push(Step::Enter { node, hint });
                }
                for job in JOB_NUMBERS {
                    let Some(fence) = its.holds[at(job)] else {
                        continue;
                    };
                    let begin = |doing| Step::Begin { node, job, doing };
                    steps.push(begin(Doing::Completing));
                    if self.budget.failures > 0 {
                        steps.push(begin(Doing::Failing));
                    }
                    if self.budget.releases > 0 {
                        steps.push(begin(Doing::Releasing));
                    }
                    let ended = self.leases[at(job)].is_some_and(|lease| {
                        let ours = lease.owner == Some(its.id)
                            || mistake == Some(Mistake::RenewsWithoutOwner);
                        ours && lease.fence == fence && !lease.lives
                    });
                    if ended {
                        steps.push(Step::Renew { node, job });
                    }
                }
            }
            None => {}
        }
    }

    fn steps_around(&self, job: u8, mistake: Option<Mistake>, steps: &mut Vec<Step>) {
        let hintings = |lost: u8| {
            [Some(true), (lost > 0).then_some(false)]
                .into_iter()
                .flatten()
        };
        if let Some(lease) = self.leases[at(job)] {
            if lease.lives && lease.owner.is_some() {
                if !self.is_believed(job, lease.fence) {
                    steps.push(Step::RunOut { job });
                } else if self.budget.expiries > 0 {
                    steps.push(Step::Expire { job });
                }
            }
            let ended = !lease.lives || mistake == Some(Mistake::ResetsLivingLeases);
            if lease.owner.is_some() && ended && !self.is_row_locked(job) {
                for hinted in hintings(self.budget.lost) {
                    steps.push(Step::Reset { job, hinted });
                }
            }
        }
        if self.jobs[at(job)] == Place::Waiting {
            for hinted in hintings(self.budget.lost) {
                steps.push(Step::Due { job, hinted });
            }
        }
        if self.is_hinted(job) && self.budget.lost > 0 {
            steps.push(Step::Lose { hint: job });
        }
        let orphan = self.first(true) == Some(job)
            && !self.owned(job)
            && !self.is_held()
            && !self.is_hinted(job)
            && self.jobs[at(job)] == Place::Executable;
        // The leader cycle finds an ended lease; an open transaction has its rows locked.
        if orphan && !self.is_door_locked() && mistake != Some(Mistake::NeverLooksForOrphans) {
            steps.push(Step::Sweep { job });
        }
    }

    /// Returns the state after this step.
    pub(super) fn after(&self, step: Step, mistake: Option<Mistake>) -> State {
        let mut next = self.clone();
        next.take(step, mistake);
        next
    }

    fn hint(&mut self, job: u8, hinted: bool) {
        if hinted {
            self.hints |= 1 << job;
        } else {
            self.budget.lost -= 1;
        }
    }

    fn take(&mut self, step: Step, mistake: Option<Mistake>) {
        match step {
            Step::Create { hinted } => {
                let next = self
                    .jobs
                    .iter()
                    .position(|place| *place == Place::Uncreated);
                if let Some(job) = next {
                    self.jobs[job] = Place::Executable;
                    self.hint(JOB_NUMBERS[job], hinted);
                }
            }
            Step::Enter { node, hint } => {
                self.nodes[at(node)].open = Some(Open::Trying { hint });
            }
            Step::TakeFirst { node, settles } => {
                if let Some(Open::Trying { hint }) = self.nodes[at(node)].open.take() {
                    if settles {
                        self.hints &= !(1 << hint);
                    } else {
                        self.budget.doubled -= 1;
                    }
                    self.take_first(node, mistake, Some(hint));
                }
            }
            Step::Begin { node, job, doing } => {
                match doing {
                    Doing::Failing => self.budget.failures -= 1,
                    Doing::Releasing => self.budget.releases -= 1,
                    Doing::Completing => {}
                }
                let its = &mut self.nodes[at(node)];
                if let Some(fence) = its.holds[at(job)].take() {
                    its.open = Some(Open::Entered { job, fence, doing });
                }
            }
            Step::Change { node } => self.change(node, mistake),
            Step::Handoff { node } => self.handoff(node, mistake),
            Step::Renew { node, job } => {
                let owner = self.nodes[at(node)].id;
                if let Some(lease) = &mut self.leases[at(job)] {
                    lease.lives = true;
                    lease.owner = Some(owner);
                }
            }
            Step::Reset { job, hinted } => {
                self.robbed |= self.leases[at(job)].is_some_and(|lease| lease.lives);
                if let Some(lease) = &mut self.leases[at(job)] {
                    lease.owner = None;
                    lease.lives = false;
                }
                self.hint(job, hinted);
            }
            Step::Sweep { job } => self.hints |= 1 << job,
            Step::Due { job, hinted } => {
                self.jobs[at(job)] = Place::Executable;
                self.hint(job, hinted);
            }
            Step::Expire { job } | Step::RunOut { job } => {
                if matches!(step, Step::Expire { .. }) {
                    self.budget.expiries -= 1;
                }
                if let Some(lease) = &mut self.leases[at(job)] {
                    lease.lives = false;
                }
            }
            Step::Lose { hint } => {
                self.budget.lost -= 1;
                self.hints &= !(1 << hint);
            }
            Step::Crash { node } => {
                self.budget.crashes -= 1;
                // The node's transaction is rolled back, and its message comes again.
                let its = &mut self.nodes[at(node)];
                its.id += 2;
                its.open = None;
                its.holds = [None; JOBS];
            }
        }
    }

    fn take_first(&mut self, node: u8, mistake: Option<Mistake>, hint: Option<u8>) {
        let takes_living = mistake == Some(Mistake::TakesLivingLeases);
        let blind = mistake == Some(Mistake::SkipsTheDoor) || takes_living;
        if self.is_held() && !blind {
            return;
        }
        let hinted = hint.filter(|job| {
            mistake == Some(Mistake::TakesTheHintedJob)
                && self.jobs[at(*job)] == Place::Executable
                && !self.owned(*job)
        });
        let Some(job) = hinted.or_else(|| self.first(takes_living)) else {
            self.door = None;
            return;
        };
        let elder = self.first(false);
        self.overtaken |= elder.is_some_and(|elder| elder < job);
        self.robbed |= self.owned(job);
        self.fence += 1;
        let fence = if mistake == Some(Mistake::FenceCountsAttempts) {
            1
        } else {
            self.fence
        };
        self.stale |= fence <= self.granted[at(job)];
        self.granted[at(job)] = fence;
        let its = &mut self.nodes[at(node)];
        self.leases[at(job)] = Some(Lease {
            owner: Some(its.id),
            fence,
            lives: true,
        });
        its.holds[at(job)] = Some(fence);
        self.door = Some((job, fence));
    }

    fn change(&mut self, node: u8, mistake: Option<Mistake>) {
        let its = &mut self.nodes[at(node)];
        let Some(Open::Entered { job, fence, doing }) = its.open else {
            return;
        };
        let lease = self.leases[at(job)];
        let ours = lease.is_some_and(|l| l.owner == Some(its.id) && l.fence == fence);
        let held = match doing {
            Doing::Completing if mistake == Some(Mistake::CompletesWithoutGuard) => {
                self.jobs[at(job)] == Place::Executable
            }
            Doing::Releasing if mistake == Some(Mistake::ReleasesWithoutGuard) => lease.is_some(),
            Doing::Completing | Doing::Failing | Doing::Releasing => ours,
        };
        its.open = Some(Open::Changed {
            job,
            fence,
            doing,
            held,
        });
    }

    fn handoff(&mut self, node: u8, mistake: Option<Mistake>) {
        let Some(Open::Changed {
            job,
            fence,
            doing,
            held,
        }) = self.nodes[at(node)].open.take()
        else {
            return;
        };
        if !held {
            // Nothing was changed.
            return;
        }
        let others = self.leases[at(job)].is_some_and(|lease| lease.fence != fence);
        self.robbed |= others && self.owned(job);
        self.leases[at(job)] = None;
        match doing {
            Doing::Completing => {
                self.stale |= fence != self.granted[at(job)];
                self.completions[at(job)] += 1;
                self.jobs[at(job)] = Place::Done;
            }
            Doing::Failing => self.jobs[at(job)] = Place::Waiting,
            Doing::Releasing => {}
        }
        if mistake == Some(Mistake::ForgetsTheHandOver) {
            if !self.is_held() {
                self.door = None;
            }
            return;
        }
        if doing == Doing::Releasing {
            // The guard held, so no other job holds the instance.
            self.door = None;
            if let Some(first) = self.first(false) {
                self.hints |= 1 << first;
            }
        } else {
            self.take_first(node, mistake, None);
        }
    }
}
