//! Settings as flags: global options of every command.

use std::fmt::Write as _;

use clap::{Arg, ArgMatches, Command};

use super::{AllGiven, Given, Origin, TABLE};

const NOTE: &str = "Settings, such as --database URL and --broker URL, are options of every \
                    command: `jobwire config --help` lists them.";

/// Adds a flag for every setting. The help of a command shows the command's own options; the help
/// of `config` lists the settings.
#[must_use]
pub fn add_to(command: Command) -> Command {
    let flags = TABLE.iter().map(|setting| {
        Arg::new(setting.argument)
            .long(setting.flag)
            .value_name(setting.value)
            // A negative interval is reported with all other mistakes.
            .allow_hyphen_values(true)
            .hide(true)
            .global(true)
    });
    with_note(command.args(flags)).mut_subcommand("config", |config| config.after_help(list()))
}

/// Adds the note after the end of a command's own help.
fn with_note(command: Command) -> Command {
    let note = match command.get_after_help() {
        Some(own) => format!("{own}\n\n{NOTE}"),
        None => NOTE.to_owned(),
    };
    command.after_help(note).mut_subcommands(with_note)
}

/// Returns the settings with their flags, defaults and variables.
fn list() -> String {
    let mut list = "Settings, options of every command:\n".to_owned();
    for setting in TABLE {
        let (flag, value) = (setting.flag, setting.value);
        let (help, default, variable) = (setting.help, setting.default, setting.variable());
        let _ = write!(
            list,
            "  --{flag} <{value}>\n          {help} [default: {default}] [env: {variable}]\n\n"
        );
    }
    list.truncate(list.trim_end().len());
    list
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
