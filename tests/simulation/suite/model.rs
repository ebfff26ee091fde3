//! Every interleaving of a small world: two nodes, three exclusive jobs of one instance.
//!
//! [`protocol`] restates the protocol as steps, and the checker explores all their orders. This
//! proves the protocol; the store conformance suite and the simulation test that the code follows
//! it.

mod protocol;

use protocol::{Budget, Mistake, State, Step};
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

/// The protocol with a budget of faults, and an optional mistake.
#[derive(Clone, Debug)]
struct Protocol {
    budget: Budget,
    mistake: Option<Mistake>,
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.budget)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        actions.extend(state.steps(self.mistake));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        Some(last.after(step, self.mistake))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a job is completed at most once", |_, state: &State| {
                state.completions.iter().all(|count| *count <= 1)
            }),
            Property::always("leases of an instance never overlap", |_, state: &State| {
                state.owned_leases() <= 1
            }),
            Property::always(
                "fences grow, and the newest completes",
                |_, state: &State| !state.stale,
            ),
            Property::always(
                "no younger job overtakes a ready one",
                |_, state: &State| !state.overtaken,
            ),
            Property::always(
                "no lease is taken from its owner before it ends",
                |_, state: &State| !state.robbed,
            ),
            Property::always("no job is forgotten", |model: &Protocol, state: &State| {
                let mut steps = state.steps(model.mistake).into_iter();
                state.all_done() || steps.any(|step| !step.is_bad_luck())
            }),
            Property::always(
                "without faults no job needs the sweeper",
                |model: &Protocol, state: &State| {
                    let lucky = state.budget == model.budget;
                    let mut steps = state.steps(model.mistake).into_iter();
                    let goes_on = |step: Step| !step.is_bad_luck() && !step.is_healing();
                    !lucky || state.all_done() || steps.any(goes_on)
                },
            ),
            Property::sometimes("all is done", |_, state: &State| state.all_done()),
            Property::sometimes("a lock is taken over", |_, state: &State| {
                state.is_taken_over()
            }),
            Property::sometimes("a stale node is refused", |_, state: &State| {
                state.is_refused()
            }),
        ]
    }
}

/// A budget without faults. Tests add only as many as can be explored in seconds.
const CALM: Budget = Budget {
    crashes: 0,
    lost: 0,
    doubled: 0,
    expiries: 0,
    failures: 0,
    releases: 0,
};

fn explore(budget: Budget) -> impl Checker<Protocol> {
    let model = Protocol {
        budget,
        mistake: None,
    };
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} distinct, {} steps deep: {budget:?}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    assert!(checker.is_done());
    checker
}

/// Asserts that every promise holds in every state, in every order of events.
fn holds(budget: Budget) {
    let checker = explore(budget);
    for property in checker.model().properties() {
        if property.expectation == Expectation::Always {
            checker.assert_no_discovery(property.name);
        }
    }
    checker.assert_any_discovery("all is done");
}

#[test]
fn every_interleaving_of_two_nodes_and_three_jobs_keeps_the_promises() {
    for budget in [
        CALM,
        Budget {
            crashes: 1,
            expiries: 1,
            ..CALM
        },
        Budget {
            crashes: 1,
            lost: 1,
            ..CALM
        },
        Budget {
            expiries: 1,
            failures: 1,
            ..CALM
        },
        Budget {
            expiries: 2,
            ..CALM
        },
        Budget {
            releases: 1,
            expiries: 1,
            ..CALM
        },
        Budget {
            failures: 1,
            releases: 1,
            lost: 1,
            ..CALM
        },
        Budget {
            lost: 1,
            doubled: 1,
            expiries: 1,
            ..CALM
        },
    ] {
        holds(budget);
    }
}

#[test]
fn the_model_reaches_what_it_is_about() {
    let checker = explore(Budget {
        expiries: 1,
        doubled: 1,
        ..CALM
    });
    checker.assert_any_discovery("a lock is taken over");
    checker.assert_any_discovery("a stale node is refused");
}

/// Asserts that the model finds this mistake, by the property that it breaks.
fn finds(mistake: Mistake, property: &'static str) {
    let model = Protocol {
        budget: Budget {
            crashes: 1,
            lost: 1,
            doubled: 1,
            expiries: 2,
            failures: 1,
            releases: 1,
        },
        mistake: Some(mistake),
    };
    let enough = HasDiscoveries::AnyOf([property].into());
    let checker = model
        .checker()
        .threads(2)
        .finish_when(enough)
        .spawn_bfs()
        .join();
    let Some(path) = checker.discovery(property) else {
        panic!("{mistake:?} does not break \"{property}\"");
    };
    println!("{mistake:?}: {:?}", path.into_actions());
}

macro_rules! mistakes {
    ($($name:ident: $mistake:ident breaks $property:literal;)+) => {
        $(#[test]
        fn $name() {
            finds(Mistake::$mistake, $property);
        })+
    };
}

mistakes! {
    a_completion_without_a_guard_is_found:
        CompletesWithoutGuard breaks "fences grow, and the newest completes";
    a_lock_that_does_not_look_at_the_instance_is_found:
        SkipsTheDoor breaks "leases of an instance never overlap";
    a_takeover_of_a_living_lease_is_found:
        TakesLivingLeases breaks "no lease is taken from its owner before it ends";
    a_forgotten_hand_over_is_found:
        ForgetsTheHandOver breaks "without faults no job needs the sweeper";
    a_sweep_of_living_leases_is_found:
        ResetsLivingLeases breaks "no lease is taken from its owner before it ends";
    a_release_without_a_guard_is_found:
        ReleasesWithoutGuard breaks "no lease is taken from its owner before it ends";
    a_renewal_of_a_lease_that_was_cleared_is_found:
        RenewsWithoutOwner breaks "leases of an instance never overlap";
    a_missing_orphan_question_is_found:
        NeverLooksForOrphans breaks "no job is forgotten";
    a_lock_of_whichever_job_was_hinted_is_found:
        TakesTheHintedJob breaks "no younger job overtakes a ready one";
    fences_that_count_attempts_are_found:
        FenceCountsAttempts breaks "fences grow, and the newest completes";
}
