//! Watches the addresses: what each one takes, and whether one that is away answers again.
//!
//! A job is a trial only where every address that takes it is away. Otherwise the watch makes the
//! trials, so that no job waits for a machine that is gone.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future::join_all;
use jobwire_core::job::scope::{Names, Scope};
use jobwire_core::store::MAX_NAMES;
use tokio_util::sync::CancellationToken;

use super::{Route, Routes};
use crate::http::Answer;

/// The pause between two looks at all addresses.
const EVERY: Duration = Duration::from_secs(5);
/// The same while each address takes all jobs.
const SELDOM: Duration = Duration::from_secs(30);
/// The same while an address is away, or has not said what it takes.
const SOON: Duration = Duration::from_secs(1);
/// How long an address may take to answer a question.
const WITHIN: Duration = Duration::from_secs(5);

/// Looks at the addresses until `stop`, or until nobody uses them.
pub(super) async fn watch(routes: Weak<Routes>, stop: CancellationToken) {
    let mut pause = EVERY;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let Some(routes) = routes.upgrade() else {
            return;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = routes.look() => {}
        }
        pause = routes.pause();
    }
}

impl Routes {
    /// Asks all addresses at once, and tells what they take together.
    pub(super) async fn look(&self) {
        let known = |route: &Route| route.scope().is_some();
        let before: Vec<bool> = self.routes.iter().map(known).collect();
        let said = join_all(self.routes.iter().map(|route| self.look_at(route))).await;
        for ((route, said), was_known) in self.routes.iter().zip(said).zip(before) {
            let address = route.rest().address();
            match said {
                Err(reason) if was_known && !known(route) => tracing::warn!(
                    address, reason,
                    "the engine node no longer says which jobs it can run; it gets none that names a deployment or a category"
                ),
                Err(reason) => {
                    tracing::debug!(address, reason, "the engine node does not say which jobs it can run");
                }
                Ok(()) => {}
            }
        }
        self.tell();
    }

    async fn look_at(&self, route: &Route) -> Result<(), String> {
        let is_trial = self.routes.len() > 1 && route.is_away() && route.trial().is_none();
        if let Some(question) = self.question {
            let asks = question.ask(route.rest());
            let said = tokio::time::timeout(WITHIN, asks).await;
            let said = said.unwrap_or_else(|_| Err("it gave no answer within 5 s".to_owned()));
            route.takes_only(said.as_ref().ok().cloned());
            if is_trial {
                match &said {
                    Ok(_) => route.answered(),
                    Err(reason) => route.failed(reason),
                }
            }
            return said.map(drop);
        }
        if is_trial {
            let asks = route.rest().ask(&self.about);
            match tokio::time::timeout(WITHIN, asks).await {
                Ok(Answer::Executed) => route.answered(),
                Ok(other) => route.failed(other.as_str()),
                Err(_) => route.failed("it gave no answer within 5 s"),
            }
        }
        Ok(())
    }

    /// Returns the pause before the next look.
    fn pause(&self) -> Duration {
        if self.routes.iter().any(Route::is_away) {
            return SOON;
        }
        if self.question.is_none() {
            // Only an address that is away is asked.
            return SOON;
        }
        let said: Vec<Option<Scope>> = self.routes.iter().map(Route::scope).collect();
        if said.iter().any(Option::is_none) {
            SOON
        } else if said.iter().flatten().all(Scope::takes_all) {
            SELDOM
        } else {
            EVERY
        }
    }

    /// Tells what the addresses take together. While none of them answers, that stays as it was:
    /// the jobs wait for the engine.
    pub(super) fn tell(&self) {
        let known: Vec<Scope> = self.routes.iter().filter_map(Route::scope).collect();
        if self.question.is_none() || known.is_empty() {
            return;
        }
        let mut reach = Scope::default();
        reach.deployments = together(known.iter().map(|scope| &scope.deployments));
        reach.categories = together(known.iter().map(|scope| &scope.categories));
        self.reach.send_if_modified(|before| {
            if *before == reach {
                return false;
            }
            tracing::info!(
                addresses = known.len(),
                deployments = reach.deployments.as_ref().map(|names| names.len()),
                categories = reach.categories.as_ref().map(|names| names.len()),
                "the jobs that the engine nodes can run have changed"
            );
            *before = reach;
            true
        });
    }
}

/// Returns the names of all addresses; `None` for all, also if they are too many for the row of a
/// node: each job still goes only to an address that takes it.
fn together<'a>(all: impl Iterator<Item = &'a Names>) -> Names {
    let mut together = std::collections::BTreeSet::new();
    for names in all {
        together.extend(names.as_ref()?.iter().cloned());
    }
    (together.len() <= MAX_NAMES).then_some(together)
}
