//! The differences between the engines of the family, as data.

/// The columns of a job in Flowable. Activiti, from which Flowable comes, lacks some of them.
const COLUMNS: [&str; 27] = [
    "id_",
    "rev_",
    "category_",
    "type_",
    "lock_exp_time_",
    "lock_owner_",
    "exclusive_",
    "execution_id_",
    "process_instance_id_",
    "proc_def_id_",
    "element_id_",
    "element_name_",
    "scope_id_",
    "sub_scope_id_",
    "scope_type_",
    "scope_definition_id_",
    "correlation_id_",
    "retries_",
    "exception_stack_id_",
    "exception_msg_",
    "duedate_",
    "repeat_",
    "handler_type_",
    "handler_cfg_",
    "custom_values_id_",
    "create_time_",
    "tenant_id_",
];

/// The table of the jobs of external workers.
const EXTERNAL: &str = "act_ru_external_job";

/// The columns that the statements use, by table.
const NEEDED: [(&str, &[&str]); 8] = [
    ("act_ru_job", &COLUMNS),
    ("act_ru_timer_job", &COLUMNS),
    ("act_ru_suspended_job", &["id_", "retries_"]),
    ("act_ru_deadletter_job", &["id_", "exception_msg_"]),
    (
        "act_ru_execution",
        &[
            "id_",
            "rev_",
            "lock_time_",
            "lock_owner_",
            "suspension_state_",
            "is_count_enabled_",
            "job_count_",
            "timer_job_count_",
            "start_time_",
        ],
    ),
    (EXTERNAL, &["process_instance_id_", "lock_exp_time_"]),
    ("act_ge_property", &["name_", "value_"]),
    ("act_ge_bytearray", &["id_", "bytes_"]),
];

/// An engine of the family.
#[derive(Debug)]
pub(crate) struct Family {
    /// The engine's name in settings and metrics.
    pub(crate) engine: &'static str,
    /// The engine's name in sentences.
    pub(crate) title: &'static str,
    /// The types of its job handlers, with [`OTHER`](crate::decode::OTHER).
    pub(crate) types: &'static [&'static str],
    /// The columns that the engine lacks, with their types. Columns of executions begin with `e.`,
    /// all others are columns of jobs.
    pub(crate) lacking: &'static [(&'static str, &'static str)],
    /// Whether the engine has jobs of external workers.
    pub(crate) has_external_jobs: bool,
    /// A column of jobs that another engine of the family adds, and the name of that engine.
    pub(crate) foreign: Option<(&'static str, &'static str)>,
    /// The prefixes of the supported schema versions.
    pub(crate) versions: &'static [&'static str],
    /// The supported versions, in words.
    pub(crate) known: &'static str,
    /// The property that hands the jobs over to Jobwire.
    pub(crate) hand_over: &'static str,
}

impl Family {
    /// Returns the problem of an engine with this schema version, if it is not supported.
    pub(crate) fn unknown_version(&self, version: Option<&str>) -> Option<String> {
        let is_known = |version: &str| self.versions.iter().any(|v| version.starts_with(v));
        (!version.is_some_and(is_known)).then(|| {
            format!(
                "the schema version of the engine is {}; Jobwire knows {}",
                version.unwrap_or("not recorded"),
                self.known
            )
        })
    }

    /// Returns the type of a column that this engine lacks. The name may begin with an alias.
    pub(super) fn lacks(&self, name: &str) -> Option<&'static str> {
        let plain = name.split_once('.').map_or(name, |(_, column)| column);
        let lacking = self.lacking.iter();
        let found = lacking.filter(|(column, _)| *column == name || *column == plain);
        found.map(|(_, kind)| *kind).next()
    }

    /// Returns the columns of a job that this engine has, as a list.
    pub(super) fn columns(&self, write: impl Fn(&str) -> String) -> String {
        let has = COLUMNS.iter().filter(|column| self.lacks(column).is_none());
        has.map(|column| write(column))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns the columns that the statements use, by table.
    pub(super) fn needed(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let has = |table: &str, column: &&&str| {
            let alias = if table == "act_ru_execution" {
                "e."
            } else {
                ""
            };
            self.lacks(&format!("{alias}{column}")).is_none()
        };
        let tables = NEEDED
            .iter()
            .filter(|(table, _)| self.has_external_jobs || *table != EXTERNAL);
        let tables = tables.map(|(table, columns)| {
            let used = columns.iter().filter(|column| has(table, column));
            (*table, used.copied().collect())
        });
        tables.collect()
    }
}
