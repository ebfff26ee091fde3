//! The settings of a process engine.

use jobwire_core::{Lane, TapMode};
use jobwire_engines::{Credentials, EngineOptions, Execution, OtherScopes};
use url::Url;

use super::{EngineExecute, EngineOtherScopes, EngineType, Settings};

impl Settings {
    /// Returns whether an engine is named.
    #[must_use]
    pub fn has_engine(&self) -> bool {
        !self.engine_database_url.expose().is_empty() || !self.engine_url.expose().is_empty()
    }

    /// Returns whether the nodes know the engine by its endpoint alone.
    #[must_use]
    pub fn engine_has_no_database(&self) -> bool {
        self.engine_database_url.expose().is_empty()
            && self.engine_execute == EngineExecute::Endpoint
    }

    /// Returns whether the leader taps the commits of the engine. It taps them unless `tap` is off;
    /// then the engine publishes the hints of its jobs.
    #[must_use]
    pub fn engine_tap(&self) -> TapMode {
        match self.tap {
            TapMode::Off => TapMode::Off,
            _ => TapMode::On,
        }
    }

    /// Returns the options of the bridge to the engine.
    ///
    /// # Errors
    /// The setting that can't be used, and the remedy.
    pub fn engine_options(&self) -> Result<EngineOptions, (&'static str, String)> {
        if self.engine_url.expose().is_empty() {
            let problem = "is missing; write https://user:password@host/process-api";
            return Err(("engine_url", problem.to_owned()));
        }
        let mut credentials = Credentials::None;
        let mut urls = Vec::new();
        for url in self.engine_url.of_each_host() {
            let mut url = Url::parse(&url).map_err(|error| {
                (
                    "engine_url",
                    format!(
                        "is not a URL ({error}); write https://user:password@host/process-api, or \
                         https://user:password@host-1,host-2/process-api for several engine nodes"
                    ),
                )
            })?;
            credentials = self.engine_credentials(&url)?;
            // Fails only without a host, which is reported later.
            let _ = url.set_username("");
            let _ = url.set_password(None);
            urls.push(String::from(url));
        }
        let or_type = |text: &str| match text {
            "" => self.engine_type.to_string(),
            named => named.to_owned(),
        };
        let lane = Lane::new(or_type(&self.engine_lane));
        let lane = lane.map_err(|bad| ("engine_lane", bad.to_string()))?;
        let schema = Some(self.engine_schema.clone()).filter(|schema| !schema.is_empty());
        let mut options = match self.engine_type {
            EngineType::Flowable => EngineOptions::new(""),
            EngineType::Camunda => EngineOptions::camunda(""),
            EngineType::Activiti => EngineOptions::activiti(""),
        };
        options.urls = urls;
        if let Some(lock_for) = self.engine_lock_for {
            options = options.lock_for(lock_for);
        }
        Ok(options
            .deployment_aware(self.engine_deployment_aware)
            .execution(match self.engine_execute {
                EngineExecute::Auto => Execution::Auto,
                EngineExecute::Rest => Execution::Rest,
                EngineExecute::Endpoint => Execution::Endpoint,
            })
            .credentials(credentials)
            .name(or_type(&self.engine_name))
            .schema(schema)
            .zone(self.engine_zone.clone())
            .lane(lane)
            .concurrency(self.engine_concurrency.size().min(self.concurrency))
            .answer_within(self.engine_answer_within)
            .takeover_patience(self.engine_takeover_patience)
            .watchdog(self.engine_watchdog)
            .other_scopes(match self.engine_other_scopes {
                EngineOtherScopes::Refuse => OtherScopes::Refuse,
                EngineOtherScopes::Leave => OtherScopes::Leave,
            })
            .max_connections(self.database_connections.0)
            .statement_timeout(self.statement_timeout)
            .plaintext(self.engine_plaintext))
    }

    fn engine_credentials(&self, url: &Url) -> Result<Credentials, (&'static str, String)> {
        let decoded = |text: &str| {
            let pair = format!("x={}", text.replace('+', "%2B"));
            let mut pairs = url::form_urlencoded::parse(pair.as_bytes());
            pairs.next().map(|(_, text)| text.into_owned())
        };
        match (&self.engine_token_file, url.username()) {
            (None, "") => Ok(Credentials::None),
            (None, user) => Ok(Credentials::basic(
                decoded(user).unwrap_or_default(),
                decoded(url.password().unwrap_or_default()).unwrap_or_default(),
            )),
            (Some(_), user) if !user.is_empty() => Err((
                "engine_token_file",
                "can't be combined with a user in `engine_url`; remove one of them".to_owned(),
            )),
            (Some(file), _) => {
                let token = std::fs::read_to_string(file).map_err(|error| {
                    (
                        "engine_token_file",
                        format!("the file can't be read: {error}; correct the path"),
                    )
                })?;
                Ok(Credentials::Bearer(token.trim().to_owned()))
            }
        }
    }
}

/// Returns the mistakes in the settings of an engine, if one is named.
pub(super) fn check(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut wrong = Vec::new();
    if !settings.has_engine() {
        return wrong;
    }
    if settings.engine_database_url.expose().is_empty() && !settings.engine_has_no_database() {
        wrong.push((
            "engine_database_url",
            "is missing beside `engine_url`; write postgres://user:password@host/database, or, for an engine on \
             another database, set `engine_execute` to `endpoint`"
                .to_owned(),
        ));
    }
    for (key, bound) in [
        ("min_priority", settings.min_priority),
        ("max_priority", settings.max_priority),
    ] {
        if bound.is_some() {
            let problem = "can't be used with an engine, whose jobs are taken at every priority; \
                           remove it";
            wrong.push((key, problem.to_owned()));
        }
    }
    wrong.extend(settings.engine_options().err());
    if (settings.engine_type, settings.engine_execute)
        == (EngineType::Activiti, EngineExecute::Rest)
    {
        wrong.push((
            "engine_execute",
            "must be `endpoint` for Activiti, which has no REST interface for jobs".to_owned(),
        ));
    }
    if settings.engine_deployment_aware {
        let problem = match (settings.engine_type, settings.engine_execute) {
            (EngineType::Camunda, EngineExecute::Endpoint) => Some(
                "needs `rest` as `engine_execute`, since the endpoint reports no deployments; without it, give \
                 each engine node the classes of all processes",
            ),
            (EngineType::Camunda, _) => None,
            _ => Some(
                "is for Camunda, whose jobs name their deployment; give the jobs of Flowable categories, which the \
                 execution endpoint reports",
            ),
        };
        wrong.extend(problem.map(|problem| ("engine_deployment_aware", problem.to_owned())));
    }
    if (settings.engine_lock_for).is_some_and(|lock_for| lock_for < settings.lease) {
        wrong.push((
            "engine_lock_for",
            "must not be shorter than `lease`".to_owned(),
        ));
    }
    wrong
}
