//! The gate before the engine: bounds the jobs of this node that are sent and not answered.
//!
//! * **One by one.** A request runs one job. As many jobs are inside as run at once, and each
//!   answer lets the next one in.
//! * **In groups.** A request runs a list of jobs, of which some wait within the engine
//!   ([`lists`](crate::lists)). More jobs are inside than run at once. The gate opens when the
//!   engine has few left, and lets a group in.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Gate {
    at_once: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inside: usize,
    /// Those inside that came alone: each has a request of its own.
    alone: usize,
    /// The number of jobs that may be inside.
    most: usize,
    waiting: VecDeque<oneshot::Sender<Pass>>,
}

/// A job inside, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Arc<Gate>,
    is_of_group: bool,
}

impl Pass {
    /// Returns the number of executions of a list at once; `None` if the job came alone. Jobs that
    /// came alone count, too.
    pub(crate) fn at_once(&self) -> Option<usize> {
        let alone = self.gate.state().alone;
        let at_once = self.gate.at_once.saturating_sub(alone).max(1);
        self.is_of_group.then_some(at_once)
    }
}

impl Gate {
    /// Returns the gate of an engine with this number of executions at once.
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        let at_once = at_once.max(1);
        let state = State {
            inside: 0,
            alone: 0,
            most: at_once,
            waiting: VecDeque::new(),
        };
        Arc::new(Self {
            at_once,
            state: Mutex::new(state),
        })
    }

    /// A poisoned lock means that a thread panicked between whole operations. The state is right.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the job may be sent. `most` is the number of jobs that may be inside from now
    /// on, at least the number of executions at once. Cancel-safe.
    pub(crate) async fn enter(self: &Arc<Self>, most: usize) -> Pass {
        let granted = {
            let mut state = self.state();
            state.most = most.max(self.at_once);
            state.waiting.retain(|waiting| !waiting.is_closed());
            if state.inside < self.at_once && state.waiting.is_empty() {
                state.inside += 1;
                state.alone += 1;
                return self.pass(false);
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back(grant);
            granted
        };
        match granted.await {
            Ok(pass) => pass,
            // The gate keeps each request until it is granted or given up.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns whether as many jobs are inside as run at once.
    pub(crate) fn is_full(&self) -> bool {
        self.state().inside >= self.at_once
    }

    fn pass(self: &Arc<Self>, is_of_group: bool) -> Pass {
        Pass {
            gate: self.clone(),
            is_of_group,
        }
    }

    /// Returns the number of jobs up to which the gate opens.
    fn few(&self, most: usize) -> usize {
        if most <= self.at_once {
            self.at_once - 1
        } else {
            // The next list is on its way before an execution's place is empty.
            self.at_once + (most - self.at_once) / 4
        }
    }

    /// Lets waiting jobs in if few are inside.
    fn open(self: &Arc<Self>) {
        let mut let_in = Vec::new();
        {
            let mut state = self.state();
            if state.inside > self.few(state.most) {
                return;
            }
            let is_group = state.most > self.at_once;
            while state.inside < state.most {
                let Some(waiting) = state.waiting.pop_front() else {
                    break;
                };
                if !waiting.is_closed() {
                    state.inside += 1;
                    state.alone += usize::from(!is_group);
                    let_in.push((waiting, is_group));
                }
            }
        }
        for (waiting, is_group) in let_in {
            // A pass whose receiver is gone is dropped here, and its place is free again.
            drop(waiting.send(self.pass(is_group)));
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.inside -= 1;
        state.alone -= usize::from(!self.is_of_group);
        drop(state);
        self.gate.open();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn one_by_one_each_answer_lets_the_next_one_in() {
        let gate = Gate::new(2);
        let first = gate.enter(2).now_or_never().expect("room");
        let _second = gate.enter(2).now_or_never().expect("room");
        let mut third = Box::pin(gate.enter(2));
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        let third = third.now_or_never().expect("room");
        assert_eq!(third.at_once(), None);
        assert_eq!(gate.state().inside, 2);
        assert_eq!(gate.state().alone, 2);
    }

    #[test]
    fn a_group_is_let_in_when_few_are_left() {
        let gate = Gate::new(2);
        let enter = || gate.enter(6).now_or_never();
        let mut inside: Vec<Option<Pass>> = vec![enter(), enter()];
        assert!(inside.iter().all(Option::is_some));
        let mut waiting: Vec<_> = (0..8).map(|_| Box::pin(gate.enter(6))).collect();
        for wait in &mut waiting {
            assert!(wait.as_mut().now_or_never().is_none(), "as many run as may");
        }
        inside.pop();
        let group: Vec<Pass> = waiting
            .iter_mut()
            .take(5)
            .map(|wait| wait.as_mut().now_or_never().expect("it is in the group"))
            .collect();
        assert!(
            group.iter().all(|pass| pass.at_once() == Some(1)),
            "one came alone"
        );
        assert_eq!(gate.state().inside, 6);
        let mut left = group.into_iter();
        for inside in [5, 4] {
            drop(left.next());
            assert_eq!(gate.state().inside, inside, "enough are left");
        }
        drop(left.next());
        assert_eq!(gate.state().inside, 6, "the last three came in");
    }

    #[test]
    fn a_job_that_gives_up_takes_no_place() {
        let gate = Gate::new(1);
        let first = gate.enter(1).now_or_never().expect("room");
        let mut gives_up = Box::pin(gate.enter(1));
        assert!(gives_up.as_mut().now_or_never().is_none());
        let mut waits = Box::pin(gate.enter(1));
        assert!(waits.as_mut().now_or_never().is_none());
        // It was let in, and never took its pass.
        drop(first);
        drop(gives_up);
        assert!(waits.now_or_never().is_some());
        assert_eq!(gate.state().inside, 0);
    }
}
