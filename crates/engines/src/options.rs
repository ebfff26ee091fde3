//! The options of a bridge to an engine.

use std::time::Duration;

use jobwire_core::transport::Plaintext;
use jobwire_core::{JobQuery, Lane, StoreError, TextField};

/// The credentials for the engine's REST interface. `Debug` hides the secrets.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credentials {
    /// No authentication.
    #[default]
    None,
    /// A user and a password.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A bearer token.
    Bearer(String),
}

impl Credentials {
    /// Returns the credentials of a user with a password.
    pub fn basic(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self::Basic {
            user: user.into(),
            password: password.into(),
        }
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Basic { .. } => "Basic(..)",
            Self::Bearer(_) => "Bearer(..)",
        })
    }
}

/// The interface over which the engine executes a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Execution {
    /// Depends on the engine: the endpoint for Activiti and Flowable 8, otherwise REST.
    #[default]
    Auto,
    /// Over the REST interface of the engine.
    Rest,
    /// Over the execution endpoint, a small addition to the engine's application. The endpoint
    /// locks the instance of an exclusive job by the engine's own rules, and always answers with
    /// the state of the job.
    Endpoint,
}

/// What a bridge does with jobs of other scopes than processes, such as cases (CMMN). It never runs
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherScopes {
    /// Refuses an engine that has such jobs. Where the executor of processes is off, that of cases
    /// usually is off, too.
    #[default]
    Refuse,
    /// Leaves them to an engine node with its own executor for them.
    Leave,
}

/// Options of a bridge.
///
/// ```
/// use jobwire_engines::EngineOptions;
///
/// let options = EngineOptions::new("http://127.0.0.1:8080/process-api")
///     .zone("Europe/Berlin".to_owned())
///     .concurrency(8);
/// assert_eq!(options.lane.as_str(), "flowable");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The engine's addresses, one for each engine node. A load balancer before several nodes is
    /// one address. An address is the URL of the engine's REST interface for processes:
    /// `http://host:port/process-api` for Flowable with Spring Boot,
    /// `http://host:port/flowable-rest/service` for the application flowable-rest,
    /// `http://host:port/engine-rest` for Camunda. For a Camunda engine that is not the default
    /// one, `/engine/NAME` follows. With the execution endpoint, it is the endpoint's URL:
    /// `http://host:port/jobwire`.
    pub urls: Vec<String>,
    /// Whether a job of Camunda goes only to an address that has registered its deployment. The
    /// engine's setting of the same name has this effect on its own executor. Default: no.
    /// Flowable's execution endpoint always reports the categories of its node.
    pub deployment_aware: bool,
    /// The interface over which the engine executes a job. Default: [`Execution::Auto`].
    pub execution: Execution,
    /// The path of an execution over REST below the URL, in which `{id}` stands for the job's id.
    /// Default: `/management/jobs/{id}`, which is Flowable's own; for Camunda `/job/{id}/execute`.
    pub path: String,
    /// The path of an execution over the endpoint below the URL. Default: `/jobs/{id}/execute`.
    pub endpoint_path: String,
    /// The credentials for REST. Default: none.
    pub credentials: Credentials,
    /// The name of the engine, which distinguishes several engines in one database. Default:
    /// `flowable`; for the other engines `camunda` and `activiti`.
    pub name: String,
    /// The schema of the engine's tables. Default: the first schema of the role's search path that
    /// has them.
    pub schema: Option<String>,
    /// The time zone of the engine's JVM, as PostgreSQL names it. The engine writes due dates and
    /// lock times in this zone, without naming it. Default: `UTC`.
    pub zone: String,
    /// The lane of the hints. Default: `flowable`; for the other engines `camunda` and `activiti`.
    pub lane: Lane,
    /// Maximum number of executions at once from this process. Each takes a thread and a connection
    /// of the engine, and a failing one takes a second connection, so it must be smaller than the
    /// engine's connection pool. Default 8.
    pub concurrency: usize,
    /// The time limit of an answer to an execution. After it the outcome is unknown, and the job
    /// stays locked until its row moves. Default 60 s.
    pub answer_within: Duration,
    /// The maximum time for which a job stays locked after an execution without an answer, if its
    /// rows do not change. Default 1 h, as long as the engine's own lock.
    pub unknown_for: Duration,
    /// The time for which a job is locked for its execution. If the lease of the nodes is longer, the
    /// lock is as long as the lease. The jobs of a dead node wait for this time. An engine node that
    /// polls may run a job again whose lock has expired while it runs.
    ///
    /// A lock of Camunda can't be renewed. Default for it: 5 min, as long as Camunda's own lock. The
    /// locks of the other engines are renewed until their node dies. Default for them: none, so a lock
    /// is as long as the lease.
    pub lock_for: Duration,
    /// The maximum time that the jobs of a dead node wait for transactions that began while the
    /// node held the jobs. The engine may still execute such a job. Default 10 min.
    pub takeover_patience: Duration,
    /// Whether the node may cancel a statement of the engine that waits for a lock of an idle
    /// transaction of the same engine. Default: no.
    pub watchdog: bool,
    /// What is done with jobs of other scopes than processes. Default: [`OtherScopes::Refuse`].
    pub other_scopes: OtherScopes,
    /// Maximum number of connections to the database for jobs. Default 8.
    pub max_connections: u32,
    /// The time after which the server ends a statement. Default 15 s.
    pub statement_timeout: Duration,
    /// The hosts to which connections without verified TLS are allowed, for the database and for
    /// the engine. Default: this machine.
    pub plaintext: Plaintext,
}

jobwire_core::setters! {
    EngineOptions {
        deployment_aware: bool,
        execution: Execution,
        path: String,
        endpoint_path: String,
        credentials: Credentials,
        name: String,
        schema: Option<String>,
        zone: String,
        lane: Lane,
        concurrency: usize,
        answer_within: Duration,
        unknown_for: Duration,
        lock_for: Duration,
        takeover_patience: Duration,
        watchdog: bool,
        other_scopes: OtherScopes,
        max_connections: u32,
        statement_timeout: Duration,
        plaintext: Plaintext,
    }
}

impl EngineOptions {
    /// Returns the error of a method that Jobwire leaves to the engine.
    pub(crate) fn refuse<T>(&self, what: &str, instead: &str) -> Result<T, StoreError> {
        Err(StoreError::Config(format!(
            "{what} of the engine `{}` is the engine's own affair; use {instead}",
            self.name
        )))
    }

    /// Refuses a filter that lists of an engine's jobs do not have.
    pub(crate) fn check_filter(&self, query: &JobQuery) -> Result<(), StoreError> {
        query.check()?;
        let unknown = |query: &JobQuery| {
            let texts = query.texts.iter().map(|(field, _)| *field);
            let mut texts =
                texts.filter(|of| matches!(of, TextField::Category | TextField::Deployment));
            match texts.next() {
                Some(field) => Some(field.column()),
                None if query.unique_key.is_some() => Some("unique key"),
                None if query.batch.is_some() => Some("batch"),
                None if query.custom_values.is_some() => Some("custom values"),
                None => None,
            }
        };
        let all = std::iter::once(query).chain(&query.any_of);
        let Some(field) = all.filter_map(unknown).next() else {
            return Ok(());
        };
        Err(StoreError::Config(format!(
            "the jobs of the engine `{}` can't be listed by {field}; leave the filter out",
            self.name
        )))
    }

    /// Returns the defaults for a Flowable engine whose REST interface, or whose execution
    /// endpoint, is at this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            urls: vec![url.into()],
            deployment_aware: false,
            execution: Execution::Auto,
            path: "/management/jobs/{id}".to_owned(),
            endpoint_path: "/jobs/{id}/execute".to_owned(),
            credentials: Credentials::None,
            name: "flowable".to_owned(),
            schema: None,
            zone: "UTC".to_owned(),
            lane: Lane::unchecked("flowable"),
            concurrency: 8,
            answer_within: Duration::from_secs(60),
            unknown_for: Duration::from_secs(3_600),
            lock_for: Duration::ZERO,
            takeover_patience: Duration::from_secs(600),
            watchdog: false,
            other_scopes: OtherScopes::Refuse,
            max_connections: 8,
            statement_timeout: Duration::from_secs(15),
            plaintext: Plaintext::Loopback,
        }
    }

    /// Returns the defaults for an Activiti engine whose execution endpoint is at this URL.
    ///
    /// ```
    /// use jobwire_engines::EngineOptions;
    ///
    /// let options = EngineOptions::activiti("http://127.0.0.1:8080/jobwire");
    /// assert_eq!(options.endpoint_path, "/jobs/{id}/execute");
    /// assert_eq!(options.lane.as_str(), "activiti");
    /// ```
    pub fn activiti(url: impl Into<String>) -> Self {
        Self {
            name: "activiti".to_owned(),
            lane: Lane::unchecked("activiti"),
            ..Self::new(url)
        }
    }

    /// Adds another address of the engine, which has the same interface, paths and credentials.
    ///
    /// ```
    /// use jobwire_engines::EngineOptions;
    ///
    /// let options = EngineOptions::camunda("http://one:8080/engine-rest")
    ///     .also("http://two:8080/engine-rest")
    ///     .deployment_aware(true);
    /// assert_eq!(options.urls.len(), 2);
    /// ```
    #[must_use]
    pub fn also(mut self, url: impl Into<String>) -> Self {
        self.urls.push(url.into());
        self
    }

    /// Returns the path of an execution.
    pub(crate) fn execution_path(&self) -> &str {
        match self.execution {
            Execution::Endpoint => &self.endpoint_path,
            Execution::Auto | Execution::Rest => &self.path,
        }
    }

    /// Returns the defaults for a Camunda 7 engine whose REST interface is at this URL.
    ///
    /// ```
    /// use jobwire_engines::EngineOptions;
    ///
    /// let options = EngineOptions::camunda("http://127.0.0.1:8080/engine-rest");
    /// assert_eq!(options.path, "/job/{id}/execute");
    /// assert_eq!(options.lane.as_str(), "camunda");
    /// ```
    pub fn camunda(url: impl Into<String>) -> Self {
        Self {
            path: "/job/{id}/execute".to_owned(),
            name: "camunda".to_owned(),
            lane: Lane::unchecked("camunda"),
            lock_for: Duration::from_secs(300),
            ..Self::new(url)
        }
    }
}
