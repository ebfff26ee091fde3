//! The routes to an engine: its addresses, and the choice of the address for a job.
//!
//! * An address executes the jobs that it takes. These are the jobs of the deployments that its
//!   engine node reports ([`question`]), or all jobs if it reports none.
//! * A job goes to the address with the fewest executions under way from this process among those
//!   that take it. Equal addresses alternate.
//! * Each address has a circuit breaker. While it is open, jobs go to the other addresses.
//! * The node locks no job that no address takes ([`watch`]).

mod away;
mod breaker;
pub(crate) mod question;
mod route;
mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jobwire_core::StoreError;
use jobwire_core::job::scope::{Needs, Scope};
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::away::Away;
use self::question::Question;
pub(crate) use self::route::{Route, Sending};
use crate::call::Call;
use crate::http::{Answer, Rest};
use crate::meter::Meter;
use crate::options::EngineOptions;

/// The time limit of a question of the probe.
const ASKED_WITHIN: Duration = Duration::from_secs(5);

/// The addresses of an engine. Shared by all executions of a process.
#[derive(Debug)]
pub(crate) struct Routes {
    routes: Vec<Route>,
    /// The query for the jobs that an address takes; `None` if each takes all.
    question: Option<Question>,
    /// The path of the liveness check of an address.
    about: String,
    next: AtomicUsize,
    reach: Sender<Scope>,
    /// Ends the watch when the routes are dropped.
    watched: OnceLock<DropGuard>,
}

/// The destination of a job.
#[derive(Debug)]
pub(crate) enum Choice<'a> {
    /// This address, now.
    Go(Sending<'a>),
    /// Every address that takes the job is away. The next trial is at this moment.
    Wait(Instant),
    /// No address takes the job.
    Nowhere,
}

impl Routes {
    /// Creates the routes without a connection. `about` is the path that answers with the engine's
    /// version.
    pub(crate) fn new(
        options: &EngineOptions,
        question: Option<Question>,
        about: String,
        meter: &Meter,
    ) -> Result<Self, StoreError> {
        if options.urls.is_empty() {
            return Err(StoreError::Config(
                "the engine has no address; give its URL in `engine_url`".to_owned(),
            ));
        }
        let away = Arc::new(Away::new(meter.clone(), options.urls.len()));
        let routes = options.urls.iter().map(|url| {
            let rest = Rest::new(options, url)?;
            Ok(Route::new(rest, question, &away))
        });
        Ok(Self {
            routes: routes.collect::<Result<_, StoreError>>()?,
            question,
            about,
            next: AtomicUsize::new(0),
            reach: Sender::new(question.map(Question::unknown).unwrap_or_default()),
            watched: OnceLock::new(),
        })
    }

    /// Returns the addresses.
    pub(crate) fn all(&self) -> &[Route] {
        &self.routes
    }

    /// Returns the query for the jobs that an address takes.
    pub(crate) fn question(&self) -> Option<Question> {
        self.question
    }

    /// Chooses an address for a job. Prefers another one than `not`, which has just failed.
    pub(crate) fn choose(&self, needs: &Needs, not: Option<&Route>) -> Choice<'_> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.routes.len().max(1);
        let (before, from) = self.routes.split_at(turn);
        let takers = || from.iter().chain(before).filter(|route| route.takes(needs));
        let is_not = |route: &Route| not.is_some_and(|not| std::ptr::eq(not, route));
        let closed = takers().filter(|route| !route.is_away());
        let best = closed.min_by_key(|route| (is_not(route), route.under_way()));
        if let Some(best) = best {
            return Choice::Go(best.send());
        }
        let mut soonest = None;
        for route in takers() {
            match route.trial() {
                None => return Choice::Go(route.send()),
                Some(at) => soonest = soonest.into_iter().chain([at]).min(),
            }
        }
        soonest.map_or(Choice::Nowhere, Choice::Wait)
    }

    /// Returns the addresses, those that answer first.
    fn by_reach(&self) -> Vec<&Route> {
        let mut routes: Vec<&Route> = self.routes.iter().collect();
        routes.sort_by_key(|route| route.is_away());
        routes
    }

    /// Sends a call to an address that answers. Tries the next one if the call could not be sent.
    pub(crate) async fn call(&self, call: &Call) -> Answer {
        let mut said = Answer::Unsent("the engine has no address".to_owned());
        for route in self.by_reach() {
            said = route.rest().call(call).await;
            if !matches!(said, Answer::Unsent(_)) {
                break;
            }
        }
        said
    }

    /// Sends an operation to an address that answers, and returns the bytes of its answer. Tries the
    /// next one if the operation could not be sent.
    ///
    /// # Errors
    /// The other answer of the endpoint.
    pub(crate) async fn operate(&self, path: &str, body: &str) -> Result<Vec<u8>, Answer> {
        let mut said = Err(Answer::Unsent("the engine has no address".to_owned()));
        for route in self.by_reach() {
            said = route.rest().operate(path, body.to_owned()).await;
            if !matches!(said, Err(Answer::Unsent(_))) {
                break;
            }
        }
        said
    }

    /// Returns whether the engine at an address answers a request that is sent now, whatever it says.
    pub(crate) async fn hears(&self, route: &Route) -> bool {
        let asked = tokio::time::timeout(ASKED_WITHIN, route.rest().ask(&self.about));
        asked
            .await
            .is_ok_and(|said| !said.is_unanswered() && !matches!(said, Answer::Unsent(_)))
    }

    /// Fails if an address that answers is of an artefact that is too old.
    ///
    /// # Errors
    /// [`StoreError::Config`] with the version that is needed.
    pub(crate) async fn refuse_old(&self) -> Result<(), StoreError> {
        let Some(question) = self.question else {
            return Ok(());
        };
        let asked = self.routes.iter().map(|route| async move {
            let said = tokio::time::timeout(ASKED_WITHIN, question.ask(route.rest())).await;
            let old = said.ok()?.err().filter(|silent| silent.is_old)?;
            Some(format!("{}: {}", route.rest().url_shown(), old.reason))
        });
        let old = futures_util::future::join_all(asked).await;
        match old.into_iter().flatten().next() {
            Some(old) => Err(StoreError::Config(old)),
            None => Ok(()),
        }
    }

    /// Returns the reason why the engine is unreachable; `None` if an address is reachable.
    pub(crate) fn problem(&self) -> Option<String> {
        let problems: Option<Vec<String>> = self.routes.iter().map(Route::problem).collect();
        problems.and_then(|problems| problems.into_iter().next())
    }

    /// Begins to watch the addresses, unless the watch runs or is not needed. Waits for the first
    /// answer of each address. Returns the jobs that all addresses take together, and each change
    /// of them; `None` if the addresses always take all jobs.
    pub(crate) async fn watch(self: &Arc<Self>) -> Option<Receiver<Scope>> {
        if self.routes.len() > 1 || self.question.is_some() {
            let mut stop = None;
            self.watched.get_or_init(|| {
                let token = CancellationToken::new();
                stop = Some(token.clone());
                token.drop_guard()
            });
            if let Some(stop) = stop {
                let _ = self.look().await;
                tokio::spawn(watch::watch(Arc::downgrade(self), stop));
            }
        }
        self.question.map(|_| self.reach.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(question: Option<Question>) -> Routes {
        let options = EngineOptions::camunda("http://127.0.0.1:1/engine-rest")
            .also("http://127.0.0.1:2/engine-rest");
        Routes::new(
            &options,
            question,
            "/version".to_owned(),
            &Meter::new("test"),
        )
        .expect("usable")
    }

    fn of(deployment: &str) -> Needs {
        Needs {
            deployment: Some(deployment.to_owned()),
            ..Needs::of("timer-transition")
        }
    }

    fn gone<'a>(routes: &'a Routes, needs: &Needs) -> Sending<'a> {
        match routes.choose(needs, None) {
            Choice::Go(sending) => sending,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn executions_go_to_the_address_with_the_fewest_and_in_turn() {
        let routes = routes(None);
        let needs = of("d1");
        let sent: Vec<Sending<'_>> = (0..6).map(|_| gone(&routes, &needs)).collect();
        let [first, second] = routes.all() else {
            panic!("two addresses");
        };
        assert_eq!((first.under_way(), second.under_way()), (3, 3));
        drop(sent);
        assert_eq!((first.under_way(), second.under_way()), (0, 0));
        let slow = gone(&routes, &needs);
        for _ in 0..4 {
            let quick = gone(&routes, &needs);
            assert!(!std::ptr::eq(quick.route(), slow.route()));
        }
        let after = slow.route();
        drop(slow);
        let Choice::Go(other) = routes.choose(&needs, Some(after)) else {
            panic!("an address");
        };
        assert!(!std::ptr::eq(other.route(), after), "it has just failed");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_away_gets_no_job_while_another_one_takes_it() {
        let routes = routes(None);
        let [away, left] = routes.all() else {
            panic!("two addresses");
        };
        for _ in 0..3 {
            away.failed("refused");
        }
        for _ in 0..4 {
            assert!(std::ptr::eq(gone(&routes, &of("d1")).route(), left));
        }
        assert!(routes.problem().is_none());
        for _ in 0..3 {
            left.failed("refused, too");
        }
        assert!(routes.problem().is_some());
        let Choice::Wait(trial) = routes.choose(&of("d1"), None) else {
            panic!("both are away");
        };
        tokio::time::sleep_until(trial).await;
        gone(&routes, &of("d1")).route().answered();
        assert!(routes.problem().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_goes_only_to_an_address_that_has_its_deployment() {
        let routes = routes(Some(Question::Deployments));
        let [first, second] = routes.all() else {
            panic!("two addresses");
        };
        assert!(matches!(routes.choose(&of("d1"), None), Choice::Nowhere));
        gone(&routes, &Needs::of("history-cleanup"));
        first.takes_only(Some(Scope::default().deployments(["d1", "both"])));
        second.takes_only(Some(Scope::default().deployments(["d2", "both"])));
        for _ in 0..4 {
            assert!(std::ptr::eq(gone(&routes, &of("d1")).route(), first));
            assert!(std::ptr::eq(gone(&routes, &of("d2")).route(), second));
        }
        assert!(matches!(routes.choose(&of("d3"), None), Choice::Nowhere));
        let sent = [gone(&routes, &of("both")), gone(&routes, &of("both"))];
        assert!(!std::ptr::eq(sent[0].route(), sent[1].route()));
        // The other one does not have it.
        for _ in 0..3 {
            first.failed("refused");
        }
        assert!(matches!(routes.choose(&of("d1"), None), Choice::Wait(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_all_addresses_take_is_within_reach_and_an_address_that_is_away_takes_nothing() {
        let routes = routes(Some(Question::Deployments));
        let none: [&str; 0] = [];
        let reach = || Scope::clone(&routes.reach.borrow());
        assert_eq!(reach(), Scope::default().deployments(none));
        let [first, second] = routes.all() else {
            panic!("two addresses");
        };
        first.takes_only(Some(Scope::default().deployments(["d1"])));
        second.takes_only(Some(Scope::default().deployments(["d2"])));
        routes.tell();
        assert_eq!(reach(), Scope::default().deployments(["d1", "d2"]));
        for _ in 0..3 {
            second.failed("refused");
        }
        routes.tell();
        assert_eq!(reach(), Scope::default().deployments(["d1"]));
        // While no address answers, jobs wait for any of them.
        for _ in 0..3 {
            first.failed("refused");
        }
        routes.tell();
        assert_eq!(reach(), Scope::default().deployments(["d1"]));
        first.answered();
        first.takes_only(Some(Scope::default()));
        routes.tell();
        assert_eq!(reach(), Scope::default(), "it takes all");
    }

    /// Its next job is the trial, so its reported jobs must stay within reach.
    #[tokio::test(start_paused = true)]
    async fn a_lone_address_that_is_away_keeps_its_jobs_within_reach() {
        let options = EngineOptions::camunda("http://127.0.0.1:1/engine-rest");
        let (question, about) = (Some(Question::Deployments), "/version".to_owned());
        let routes = Routes::new(&options, question, about, &Meter::new("test")).expect("usable");
        let [lone] = routes.all() else {
            panic!("one address");
        };
        for _ in 0..3 {
            lone.failed("refused");
        }
        lone.takes_only(Some(Scope::default().deployments(["d1"])));
        routes.tell();
        let reach = Scope::clone(&routes.reach.borrow());
        assert_eq!(reach, Scope::default().deployments(["d1"]));
        assert!(matches!(routes.choose(&of("d1"), None), Choice::Wait(_)));
    }
}
