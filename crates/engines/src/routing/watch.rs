//! Watches the addresses: the jobs that each one takes, and the return of those that are away.
//!
//! An address is away after three unanswered queries in a row, so that no job waits for a dead
//! machine. One answer ends this. A lone address is tried with jobs.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future::join_all;
use jobwire_core::job::scope::{Names, Scope};
use jobwire_core::store::MAX_NAMES;
use tokio_util::sync::CancellationToken;

use super::question::{Report, Silent};
use super::{Route, Routes};

/// The pause between two checks of all addresses.
const EVERY: Duration = Duration::from_secs(5);
/// The pause while each address takes all jobs.
const SELDOM: Duration = Duration::from_secs(30);
/// The pause while an address is away or has not reported its jobs.
const SOON: Duration = Duration::from_secs(1);
/// The time limit of a query.
const WITHIN: Duration = Duration::from_secs(5);

/// Checks the addresses until `stop`, or until the last receiver is dropped.
pub(super) async fn watch(routes: Weak<Routes>, stop: CancellationToken) {
    let mut pause = SOON;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let Some(routes) = routes.upgrade() else {
            return;
        };
        pause = tokio::select! {
            () = stop.cancelled() => return,
            pause = routes.look() => pause,
        };
    }
}

impl Routes {
    /// Queries all addresses at once, and publishes the jobs that they take together. Returns the
    /// pause before the next check.
    pub(super) async fn look(&self) -> Duration {
        let said = join_all(self.routes.iter().map(|route| self.look_at(route))).await;
        let is_whole = said.iter().all(Result::is_ok);
        self.tell();
        if !is_whole || self.routes.iter().any(Route::is_away) {
            SOON
        } else if self.routes.len() == 1 && self.reach.borrow().takes_all() {
            SELDOM
        } else {
            EVERY
        }
    }

    /// Queries an address, and records whether it is away. For a lone address only jobs decide
    /// this, because no other address could take them.
    async fn look_at(&self, route: &Route) -> Result<(), Silent> {
        let is_alone = self.routes.len() == 1;
        let said = tokio::time::timeout(WITHIN, self.ask(route)).await;
        let said = said.unwrap_or_else(|_| {
            Err(Silent {
                reason: format!("it gave no answer within {} s", WITHIN.as_secs()),
                is_away: true,
                is_old: false,
            })
        });
        if let Err(silent) = &said {
            tracing::debug!(
                address = route.rest().address(),
                reason = silent.reason,
                "the engine node gave no answer"
            );
        }
        match &said {
            Ok(()) if !is_alone => route.heard(),
            Err(silent) if silent.is_away && !is_alone => route.silent(&silent.reason),
            _ => {}
        }
        said
    }

    async fn ask(&self, route: &Route) -> Result<(), Silent> {
        let Some(question) = self.question else {
            return Silent::unless(route.rest().ask(&self.about).await);
        };
        let said = question.ask(route.rest()).await;
        self.note(route, &said);
        said.map(drop)
    }

    /// Records the report of an address.
    fn note(&self, route: &Route, said: &Result<Report, Silent>) {
        let old = said.as_ref().err().filter(|silent| silent.is_old);
        // An address without an answer keeps what is known about it.
        if (said.is_ok() || old.is_some()) && route.refuse(old.map(|silent| silent.reason.clone()))
        {
            tracing::error!(
                address = route.rest().address(),
                reason = old.map(|silent| &*silent.reason),
                "the engine node gets no jobs"
            );
        }
        let lists = said
            .as_ref()
            .map_or(old.is_none() && route.lists().are_taken(), |report| {
                report.takes_lists
            });
        route.lists().know(lists);
        if route.takes_only(said.as_ref().ok().map(|report| report.scope.clone()))
            && let Err(silent) = &said
        {
            tracing::warn!(
                address = route.rest().address(),
                reason = silent.reason,
                "the engine node does not report its jobs; it gets no job that names a deployment or a category"
            );
        }
    }

    /// Publishes the jobs that the addresses take together. While no address answers, the last
    /// value stays, and the jobs wait for the engine.
    pub(super) fn tell(&self) {
        let is_alone = self.routes.len() == 1;
        // A lone address that is away gets a job as its trial, so its jobs stay within reach.
        let counts = |route: &&Route| is_alone || !route.is_away();
        let known = self.routes.iter().filter(counts);
        let known: Vec<Scope> = known.filter_map(Route::scope).collect();
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

/// Returns the names of all addresses; `None` for all jobs, also if the names do not fit the row of
/// a node. Each job still goes only to an address that takes it.
fn together<'a>(all: impl Iterator<Item = &'a Names>) -> Names {
    let mut together = std::collections::BTreeSet::new();
    for names in all {
        together.extend(names.as_ref()?.iter().cloned());
    }
    (together.len() <= MAX_NAMES).then_some(together)
}
