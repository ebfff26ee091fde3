//! Settings as flags: global options of every command.

use clap::{Arg, ArgMatches, Command};

use super::{AllGiven, Given, Origin, TABLE};

/// The settings that `-h` shows; `--help` shows all.
const SHORT_HELP: [&str; 4] = ["database_url", "broker_url", "http", "concurrency"];

/// Adds a flag for every setting.
#[must_use]
pub fn add_to(command: Command) -> Command {
    command.args(TABLE.iter().map(|setting| {
        Arg::new(setting.argument)
            .long(setting.flag)
            .value_name(setting.value)
            // A negative interval is reported with all other mistakes.
            .allow_hyphen_values(true)
            .help(format!(
                "{} [default: {}] [env: {}]",
                setting.help,
                setting.default,
                setting.variable()
            ))
            .help_heading("Settings")
            .hide_short_help(!SHORT_HELP.contains(&setting.key))
            .global(true)
    }))
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
