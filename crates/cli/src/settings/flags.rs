//! Settings as flags: global options of every command.

use clap::{Arg, ArgMatches, Command};

use super::{AllGiven, Given, Origin, TABLE};

/// Shown by `-h`; `--help` shows all.
const SHORT_HELP: [&str; 4] = ["database_url", "broker_url", "http", "concurrency"];

/// Add a flag for every setting.
#[must_use]
pub fn add_to(command: Command) -> Command {
    command.args(TABLE.iter().map(|setting| {
        Arg::new(setting.argument)
            .long(setting.flag)
            .value_name(setting.value)
            // A negative interval is a mistake of the setting, and is named with all others.
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

/// The flags that were given.
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
