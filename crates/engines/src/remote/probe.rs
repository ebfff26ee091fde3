//! The probe and the examination of an engine over its endpoint.

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use jobwire_core::store::SchemaStatus;

use super::served::Served;
use super::wire::{Clock, Nothing, Probe, Released};
use super::{EndpointStore, Result};
use crate::decode::OTHER;
use crate::finding::{Finding, Level};
use crate::id::job_id;
use crate::options::OtherScopes;
use crate::{probing, released};

/// The version of the contract that this store speaks.
const CONTRACT: u32 = 1;
/// The maximum lead of the clock of the engine's machine over that of the database, in
/// milliseconds. The engine compares due dates and lock times with its own clock.
const APART: i64 = 5_000;
/// The remedy for jobs of other scopes.
const RUN_OTHERS: &str = "let an engine node with its own executor run them";

impl EndpointStore {
    async fn probed(&self) -> Result<Probe> {
        self.0.client.ask("check", "probe", &Nothing {}).await
    }

    /// Searches for [jobs of other scopes](crate::other_scopes), if the pause is over.
    pub(super) async fn tell_other_scopes(&self) {
        let searches = &self.0.other_scopes;
        let Some(began) = searches.begin() else {
            return;
        };
        match self.probed().await {
            Ok(probe) => {
                // The probe counts them without their names.
                let found = [("other".to_owned(), probe.other_scopes)];
                searches.end(began, &found, &self.0.parts.meter);
            }
            Err(error) => {
                tracing::debug!(%error, "the search for jobs of other scopes failed");
            }
        }
    }

    /// Returns the clock of the engine's database.
    pub(super) async fn clock(&self) -> Result<DateTime<Utc>> {
        let clock: Clock = self.0.client.ask("answers", "clock", &Nothing {}).await?;
        Ok(clock.now)
    }

    /// Checks that the endpoint serves a supported engine. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Config`] with the obstacles, and if the endpoint does not answer.
    pub async fn probe(&self) -> Result<()> {
        self.status().await.map(drop)
    }

    /// Returns the version of the contract and the database if there is no obstacle. The database
    /// needs nothing of Jobwire's own.
    pub(super) async fn status(&self) -> Result<SchemaStatus> {
        let probe = self.probed().await?;
        probing::refuse(&self.problems(&probe))?;
        Ok(SchemaStatus::Ready {
            version: i32::try_from(probe.contract).unwrap_or(i32::MAX),
            server: probe.database,
        })
    }

    /// Returns all jobs to the engine: clears the expired locks of Jobwire and removes its properties.
    /// Returns the number of jobs that were locked. No node may run meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Config`] if a node is alive or a lock has not expired, and if the endpoint does not
    /// answer.
    pub async fn release_engine(&self) -> Result<u64> {
        if let Some(node) = self.members().await?.iter().find(|node| node.lives()) {
            return Err(StoreError::Config(format!(
                "node {} on {} serves the engine; stop it first",
                node.membership.id, node.membership.host
            )));
        }
        let client = &self.0.client;
        let released: Released = client.ask("release", "release", &Nothing {}).await?;
        let released = released::Released {
            released: released.released,
            left: released.left,
            until: None,
        };
        released.whole(self.0.parts.options.takeover_patience)
    }

    /// Returns the obstacles, each with its remedy.
    fn problems(&self, probe: &Probe) -> Vec<String> {
        problems(self.0.served, self.0.parts.options.other_scopes, probe)
    }

    /// Examines the engine, for `jobwire doctor`. Changes nothing.
    ///
    /// # Errors
    /// If the endpoint does not answer.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        let (probe, served) = (self.probed().await?, self.0.served);
        let url = &self.0.parts.options.urls.join(", ");
        let version = probe.version.as_deref().unwrap_or("unknown");
        let fine = || {
            format!(
                "{}, schema version {version}, on {} over the endpoint",
                served.title(),
                probe.database
            )
        };
        let mut findings = vec![Finding::fine("endpoint", format!("{url} answers"))];
        findings.extend(probing::found(self.problems(&probe), fine));
        if probe.polls || probe.executor {
            findings.push(probing::polls(served.hand_over()));
        }
        if self.0.parts.options.other_scopes == OtherScopes::Leave && probe.other_scopes > 0 {
            let left = of_other_scopes(&probe);
            let left = format!("{left}; `engine_other_scopes` leaves them to the engine");
            findings.push(Finding::bad(Level::Remark, "scopes", left, RUN_OTHERS));
        }
        if probe.clock_ahead.abs() > APART {
            findings.push(Finding::bad(
                Level::Remark,
                "clock",
                format!(
                    "the clock of the engine's machine differs from its database's by {} ms",
                    probe.clock_ahead
                ),
                "synchronise both clocks: the engine writes due dates by its own, and Jobwire reads them by the \
                 database's",
            ));
        }
        let own: Vec<String> = probe
            .handlers
            .into_iter()
            .filter(|name| self.0.decoder.type_of(Some(name)) == OTHER)
            .filter(|name| !name.starts_with("cmmn"))
            .collect();
        findings.extend(probing::own_handlers(&own));
        Ok(findings)
    }
}

/// Returns the obstacles, each with its remedy.
fn problems(served: Served, other_scopes: OtherScopes, probe: &Probe) -> Vec<String> {
    let mut problems = Vec::new();
    if probe.contract != CONTRACT {
        problems.push(format!(
            "the endpoint speaks version {} of its contract, and this program version {CONTRACT}; use the Java \
             artefact and the program of one release",
            probe.contract
        ));
    }
    if probe.engine != served.engine() {
        problems.push(format!(
            "the endpoint is of the engine `{}`, and `engine_type` is `{}`; correct it",
            probe.engine,
            served.engine()
        ));
        return problems;
    }
    problems.extend(served.unknown_version(probe.version.as_deref()));
    let unknown = probe.ids.iter().find_map(|id| job_id(id).err());
    problems.extend(unknown.map(|error| error.to_string()));
    if other_scopes == OtherScopes::Refuse && probe.other_scopes > 0 {
        problems.push(format!(
            "{}; Jobwire runs the jobs of processes only: {RUN_OTHERS}; or, if such a node runs them already, set \
             `engine_other_scopes` to `leave`",
            of_other_scopes(probe)
        ));
    }
    problems
}

fn of_other_scopes(probe: &Probe) -> String {
    format!(
        "{} jobs are of another scope than processes, such as cases",
        probe.other_scopes
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{activiti, flowable};

    const FLOWABLE: Served = Served::Act(&flowable::FAMILY);
    const ACTIVITI: Served = Served::Act(&activiti::FAMILY);

    fn good(served: Served, version: &str) -> Probe {
        Probe {
            contract: CONTRACT,
            engine: served.engine().to_owned(),
            version: Some(version.to_owned()),
            executor: false,
            database: "MariaDB 10.11".to_owned(),
            clock_ahead: 0,
            ids: vec!["17".to_owned()],
            other_scopes: 0,
            handlers: Vec::new(),
            polls: false,
        }
    }

    #[test]
    fn a_known_engine_is_accepted_and_each_problem_is_told() {
        let known = [
            (FLOWABLE, "7.2.0.2"),
            (ACTIVITI, "7.1.0-M6"),
            (ACTIVITI, "6.0.0.4"),
            (Served::Camunda, "7.24.0"),
        ];
        for (served, version) in known {
            let found = problems(served, OtherScopes::Refuse, &good(served, version));
            assert_eq!(found, Vec::<String>::new(), "{version}");
        }
        type Spoil = fn(&mut Probe);
        let cases: [(Spoil, &str); 5] = [
            (|p| p.contract = 2, "one release"),
            (|p| p.engine = "activiti".to_owned(), "`engine_type`"),
            (|p| p.version = Some("6.4.1.3".to_owned()), "6.8, 7 and 8.0"),
            (|p| p.ids.push("order-1".to_owned()), "StrongUuidGenerator"),
            (|p| p.other_scopes = 3, "3 jobs"),
        ];
        for (spoil, said) in cases {
            let mut probe = good(FLOWABLE, "7.2.0.2");
            spoil(&mut probe);
            let problems = problems(FLOWABLE, OtherScopes::Refuse, &probe);
            assert!(
                problems.len() == 1 && problems[0].contains(said),
                "{problems:?}"
            );
        }
        for (served, version, said) in [
            (ACTIVITI, "8.1.0", "Activiti 6.0 and 7.1"),
            (Served::Camunda, "7.13.0", "Camunda 7.20 to 7.29"),
        ] {
            let unknown = problems(served, OtherScopes::Refuse, &good(served, version));
            assert!(unknown[0].contains(said), "{unknown:?}");
        }
    }
}
