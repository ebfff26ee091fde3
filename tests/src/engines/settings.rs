//! The settings of an engine.

use std::time::Duration;

use crate::engines::EngineProgram;
use crate::jdbc::Jdbc;
use crate::port;
use crate::shared::Space;

/// What runs the jobs of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobExecutor {
    /// Nothing inside the engine.
    Off,
    /// The engine's own executor.
    On,
    /// Activiti's message-queue mode, with a queue that loses every message.
    MessageQueue,
}

/// Settings of an [`crate::EngineServer`]. By default the executor is off, and a connection of the
/// engine waits two seconds for a lock, as the bridge requires.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    pub(crate) program: EngineProgram,
    pub(crate) port: u16,
    database: String,
    executor: JobExecutor,
    lock_timeout: Option<Duration>,
    connections: u32,
    zone: String,
    lock_time: Duration,
    reset_interval: Duration,
    acquire_wait: Option<Duration>,
    properties: Vec<String>,
    hints: Vec<(&'static str, String)>,
}

impl EngineSettings {
    /// Returns the settings of this engine on the database of this URL.
    #[must_use]
    pub fn new(program: EngineProgram, database: &str) -> EngineSettings {
        EngineSettings {
            program,
            port: port::free(),
            database: database.to_owned(),
            executor: JobExecutor::Off,
            lock_timeout: Some(Duration::from_secs(2)),
            connections: 20,
            zone: "UTC".to_owned(),
            lock_time: Duration::from_secs(300),
            reset_interval: Duration::from_secs(60),
            acquire_wait: None,
            properties: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// Returns the settings of Flowable 7 on the database of this URL.
    #[must_use]
    pub fn flowable7(database: &str) -> EngineSettings {
        EngineSettings::new(EngineProgram::Flowable7, database)
    }

    /// Returns the settings of Flowable 6.8 on the database of this URL.
    #[must_use]
    pub fn flowable6(database: &str) -> EngineSettings {
        EngineSettings::new(EngineProgram::Flowable6, database)
    }

    /// Returns the settings of Flowable 8 on the database of this URL.
    #[must_use]
    pub fn flowable8(database: &str) -> EngineSettings {
        EngineSettings::new(EngineProgram::Flowable8, database)
    }

    /// Returns the settings of Camunda 7 on the database of this URL.
    #[must_use]
    pub fn camunda7(database: &str) -> EngineSettings {
        EngineSettings::new(EngineProgram::Camunda7, database)
    }

    /// Returns the settings of Activiti 6 on the database of this URL.
    #[must_use]
    pub fn activiti6(database: &str) -> EngineSettings {
        EngineSettings::new(EngineProgram::Activiti6, database)
    }

    /// Returns the settings of Activiti 7 on the database of this URL.
    #[must_use]
    pub fn activiti7(database: &str) -> EngineSettings {
        EngineSettings::new(EngineProgram::Activiti7, database)
    }

    /// Sets what runs the jobs.
    #[must_use]
    pub fn executor(mut self, executor: JobExecutor) -> EngineSettings {
        self.executor = executor;
        self
    }

    /// Sets how long a connection waits for a lock; `None` for ever.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Option<Duration>) -> EngineSettings {
        self.lock_timeout = timeout;
        self
    }

    /// Sets the size of the engine's pool of connections: 20 by default.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> EngineSettings {
        self.connections = connections;
        self
    }

    /// Sets the time zone of the Java virtual machine, such as `America/New_York`.
    #[must_use]
    pub fn zone(mut self, zone: &str) -> EngineSettings {
        zone.clone_into(&mut self.zone);
        self
    }

    /// Sets how long Activiti's executor locks a job, and how often it resets expired locks and
    /// looks for due timers: five minutes and one minute by default.
    #[must_use]
    pub fn activiti_locks(mut self, time: Duration, reset_interval: Duration) -> EngineSettings {
        self.lock_time = time;
        self.reset_interval = reset_interval;
        self
    }

    /// Lets Activiti's executor look for jobs this often, and take up to 100 at once for eight
    /// threads.
    #[must_use]
    pub fn activiti_acquisition(mut self, wait: Duration) -> EngineSettings {
        self.acquire_wait = Some(wait);
        self
    }

    /// Sets a property of Spring Boot, which the engines with REST read.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> EngineSettings {
        self.properties.push(format!("--{name}={value}"));
        self
    }

    /// Lets the engine publish hints to this broker. Without it, the engine publishes none.
    #[must_use]
    pub fn hints(mut self, space: &Space) -> EngineSettings {
        let url = match space.url.strip_prefix("kafka://") {
            Some(_) => format!("{}/{}", space.url, space.prefix),
            None => space.url.clone(),
        };
        self.hints.push(("JOBWIRE_BROKER_URL", url));
        self.hints
            .push(("JOBWIRE_AMQP_PREFIX", space.prefix.clone()));
        self
    }

    /// Sets how long a hint may wait for the broker: ten seconds by default.
    #[must_use]
    pub fn hint_max_age(mut self, age: Duration) -> EngineSettings {
        let age = format!("{}ms", age.as_millis());
        self.hints.push(("JOBWIRE_HINT_MAX_AGE", age));
        self
    }

    /// Returns the options of the Java virtual machine.
    pub(crate) fn java(&self) -> Vec<String> {
        vec![format!("-Duser.timezone={}", self.zone)]
    }

    pub(crate) fn arguments(&self) -> &[String] {
        &self.properties
    }

    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let Jdbc {
            mut url,
            user,
            password,
            is_postgres,
        } = Jdbc::of(&self.database);
        if is_postgres {
            url.push_str("?ApplicationName=engine");
        }
        if let Some(timeout) = self.lock_timeout.filter(|_| is_postgres) {
            let milliseconds = timeout.as_millis();
            url = format!("{url}&options=-c%20lock_timeout={milliseconds}ms");
        }
        let executor = match self.executor {
            JobExecutor::Off => "off",
            JobExecutor::On => "on",
            JobExecutor::MessageQueue => "message-queue",
        };
        let mut environment = vec![
            ("ENGINE_JDBC_URL", url),
            ("ENGINE_DATABASE_USER", user),
            ("ENGINE_DATABASE_PASSWORD", password),
            ("ENGINE_CONNECTIONS", self.connections.to_string()),
            ("ENGINE_PORT", self.port.to_string()),
            ("ENGINE_EXECUTOR", executor.to_owned()),
            ("ENGINE_LOCK_MILLIS", self.lock_time.as_millis().to_string()),
            (
                "ENGINE_RESET_MILLIS",
                self.reset_interval.as_millis().to_string(),
            ),
        ];
        let acquire = self.acquire_wait.iter();
        environment
            .extend(acquire.map(|wait| ("ENGINE_ACQUIRE_MILLIS", wait.as_millis().to_string())));
        environment.extend(self.hints.iter().cloned());
        environment
    }
}
