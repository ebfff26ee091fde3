//! Settings as flags.
//!
//! Most settings are options of every command. The settings of a node are options of the commands
//! that start or judge a node (`TAKES`), and of no other command: there, `--tenants` would be taken
//! for a filter, and have no effect. In the file and the environment every setting may stand, because
//! one file serves all commands.

use std::fmt::Write as _;

use clap::{Arg, ArgMatches, Command};

use super::{AllGiven, Given, Origin, Setting, TABLE};

const NOTE: &str = "Settings, such as --database URL and --broker URL, are options of every \
                    command; those of a node are options of the commands that start one: `jobwire \
                    config --help` lists them.";

/// The settings of a node.
const NODE: &[&str] = &[
    "http",
    "http_allow_hosts",
    "concurrency",
    "concurrency_min",
    "concurrency_idle",
    "concurrency_cpu",
    "lease",
    "sweep_interval",
    "suspect_after",
    "claim_after",
    "claim_interval",
    "quarantine_after",
    "row_lock_types",
    "row_lock_from",
    "type_timeouts",
    "type_heartbeat_timeouts",
    "type_concurrency",
    "type_limits",
    "attempt_types",
    "attempts_kept",
    "incidents_kept",
    "retry_policy",
    "retry_from",
    "history_retry_policy",
    "type_retry_policies",
    "periodic_jobs",
    "shutdown_timeout",
    "lanes",
    "lane_order",
    "lane_aging",
    "start_order",
    "deployments",
    "categories",
    "tenants",
    "min_priority",
    "max_priority",
    "tap",
];

/// The settings of a node that a command takes as flags, by the words of the command. The commands
/// below it take them, too.
const TAKES: &[(&str, &[&str])] = &[
    ("run", NODE),
    ("bench", NODE),
    ("demo", NODE),
    ("doctor", NODE),
    ("sweep", NODE),
    ("config", NODE),
    ("jobs execute", NODE),
    ("engine run", NODE),
    ("engine sweep", NODE),
    ("engine jobs execute", NODE),
    ("engine init", &["tap"]),
    ("lanes list", &["lanes"]),
    ("lanes set", &["lanes"]),
];

/// The commands that start or judge a node, for people.
pub(super) const NODE_COMMANDS: &str = "`run`, `bench`, `demo`, `doctor`, `sweep`, `config`, `jobs execute`, `engine run`, \
     `engine sweep` and `engine jobs execute`";

impl Setting {
    /// Returns whether this is a setting of a node: a flag of the commands that start or judge a node
    /// only.
    #[must_use]
    pub fn is_of_node(&self) -> bool {
        NODE.contains(&self.key)
    }

    /// Returns whether a command, by its words, takes this setting as a flag.
    #[must_use]
    pub(crate) fn is_flag_of(&self, command: &str) -> bool {
        let is_below = |of: &str| {
            let rest = command.strip_prefix(of);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let mut takes = TAKES.iter().filter(|(of, _)| is_below(of));
        !self.is_of_node() || takes.any(|(_, keys)| keys.contains(&self.key))
    }

    fn argument(&self) -> Arg {
        Arg::new(self.argument)
            .long(self.flag)
            .value_name(self.value)
            // A negative interval is reported with all other mistakes.
            .allow_hyphen_values(true)
            .hide(true)
    }
}

/// Adds the flags of the settings to the commands that take them. The help of a command shows the
/// command's own options; the help of `config` lists the settings.
#[must_use]
pub fn add_to(command: Command) -> Command {
    let flags = TABLE.iter().map(|setting| {
        // A setting of a node may stand before the command that takes it; `refused` finds others.
        setting.argument().global(!setting.is_of_node())
    });
    let command = command.args(flags).after_help(NOTE);
    command.mut_subcommands(|below| {
        let name = below.get_name().to_owned();
        add_below(below, &name)
    })
}

/// Adds the flags of a node to a command that takes them, and the note to the end of its help.
fn add_below(command: Command, name: &str) -> Command {
    let keys = TAKES.iter().find(|(of, _)| *of == name);
    let keys = keys.map_or(&[][..], |(_, keys)| *keys);
    let taken = TABLE.iter().filter(|setting| keys.contains(&setting.key));
    let end = match command.get_after_help() {
        _ if name == "config" => list(),
        Some(own) => format!("{own}\n\n{NOTE}"),
        None => NOTE.to_owned(),
    };
    command
        .args(taken.map(|setting| setting.argument().global(true)))
        .after_help(end)
        .mut_subcommands(|below| {
            let name = format!("{name} {}", below.get_name());
            add_below(below, &name)
        })
}

/// Returns the settings with their flags, defaults and variables.
fn list() -> String {
    let mut list = "Settings, options of every command:\n".to_owned();
    let (of_node, of_all): (Vec<&Setting>, Vec<_>) = TABLE.iter().partition(|s| s.is_of_node());
    of_all
        .into_iter()
        .for_each(|setting| add(&mut list, setting));
    let _ = writeln!(
        list,
        "Settings of a node, options of {}:",
        NODE_COMMANDS.replace('`', "")
    );
    of_node
        .into_iter()
        .for_each(|setting| add(&mut list, setting));
    list.truncate(list.trim_end().len());
    list
}

fn add(list: &mut String, setting: &Setting) {
    let (flag, value) = (setting.flag, setting.value);
    let (help, default, variable) = (setting.help, setting.default, setting.variable());
    let _ = write!(
        list,
        "  --{flag} <{value}>\n          {help} [default: {default}] [env: {variable}]\n\n"
    );
}

/// Returns the given flags.
#[must_use]
pub fn found(matches: &ArgMatches) -> Vec<(&'static str, String)> {
    TABLE
        .iter()
        .filter_map(|setting| {
            let value = matches.get_one::<String>(setting.argument)?;
            Some((setting.key, value.clone()))
        })
        .collect()
}

/// Returns a setting that stands before a command that does not take it as a flag.
pub(crate) fn refused(matches: &ArgMatches, command: &str) -> Option<&'static Setting> {
    let mut given = TABLE
        .iter()
        .filter(|setting| matches.get_one::<String>(setting.argument).is_some());
    given.find(|setting| !setting.is_flag_of(command))
}

pub(super) fn given(flags: &[(&'static str, String)]) -> AllGiven {
    flags
        .iter()
        .filter_map(|(key, text)| {
            let setting = TABLE.iter().find(|s| s.key == *key)?;
            let given = Given {
                text: text.clone(),
                origin: Origin::Flag(setting.flag.to_owned()),
            };
            Some((setting.key, given))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_name_settings_and_commands_that_exist() {
        let known = |key: &&str| TABLE.iter().any(|setting| setting.key == *key);
        assert!(NODE.iter().all(known));
        for (words, keys) in TAKES {
            assert!(keys.iter().all(known), "{words}");
            let mut command = crate::cli::command();
            for word in words.split(' ') {
                let below = command.find_subcommand(word).expect(words);
                command = below.clone();
            }
        }
    }
}
