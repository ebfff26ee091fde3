//! Flags that a command does not have, although another one does: a setting of a node that was taken
//! for a filter, the scope of another command, and an option before its command.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};

use crate::settings::{TABLE, flags};

/// A command line that is not run.
#[derive(Debug)]
pub(super) enum Mistaken {
    /// A mistake with its remedy.
    Said(String),
    /// Help, or another mistake.
    Clap(clap::Error),
}

/// The filter that a setting of a node was taken for.
const FILTERS: [(&str, &str); 6] = [
    ("deployments", "deployment"),
    ("categories", "category"),
    ("tenants", "tenant"),
    ("lanes", "lane"),
    ("min-priority", "priority-at-least"),
    ("max-priority", "priority-at-most"),
];

/// Commands, flags that they lack, and what to write instead.
const ELSEWHERE: [([&str; 2], &[&str], [&str; 2]); 2] = [
    (
        ["suspend", "activate"],
        &["lane", "category", "all"],
        ["pause", "resume"],
    ),
    (
        ["pause", "resume"],
        &[
            "instance",
            "process-instance",
            "definition",
            "process-definition",
            "definition-key",
            "element",
            "tenant",
        ],
        ["suspend", "activate"],
    ),
];

/// Reads the command line.
///
/// # Errors
/// The mistake, or the help that was asked for.
pub(super) fn matches(line: &[OsString]) -> Result<ArgMatches, Mistaken> {
    let mut whole = super::command();
    let matches = match whole.try_get_matches_from_mut(line) {
        Ok(matches) => matches,
        Err(error) => return Err(explained(error, &whole, line)),
    };
    let mut words = Vec::new();
    let mut below = &matches;
    while let Some((word, of)) = below.subcommand() {
        words.push(word);
        below = of;
    }
    let words = words.join(" ");
    match flags::refused(&matches, &words) {
        None => Ok(matches),
        Some(setting) => {
            let called = Called::of(&whole, words.split(' '));
            let said = called.remedy(&format!("--{}", setting.flag));
            Err(Mistaken::Said(said.unwrap_or_default()))
        }
    }
}

/// Returns the error with a remedy, if the flag is known elsewhere. Else a tip names no setting that
/// the command does not take.
fn explained(mut error: clap::Error, whole: &Command, line: &[OsString]) -> Mistaken {
    if error.kind() != ErrorKind::UnknownArgument {
        return Mistaken::Clap(error);
    }
    let words = line.iter().skip(1).filter_map(|word| word.to_str());
    let called = Called::of(whole, words.take_while(|word| *word != "--"));
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    if let Some(said) = text(ContextKind::InvalidArg).and_then(|flag| called.remedy(flag)) {
        return Mistaken::Said(said);
    }
    let tip = text(ContextKind::SuggestedArg).and_then(|tip| tip.strip_prefix("--"));
    if tip.is_some_and(|tip| called.refuses(tip)) {
        error.remove(ContextKind::SuggestedArg);
    }
    Mistaken::Clap(error)
}

/// The command that was called.
struct Called<'a> {
    command: &'a Command,
    /// Its words, without the program.
    words: String,
}

impl<'a> Called<'a> {
    /// Finds the command in the words of a line. Other words are passed over.
    fn of<'b>(whole: &'a Command, line: impl Iterator<Item = &'b str>) -> Self {
        let (mut command, mut words) = (whole, Vec::new());
        for word in line {
            if let Some(below) = command.find_subcommand(word) {
                words.push(below.get_name());
                command = below;
            }
        }
        Self {
            command,
            words: words.join(" "),
        }
    }

    fn has(&self, name: &str) -> bool {
        let is_name = |long: &str| long == name;
        self.command.get_arguments().any(|argument| {
            argument.get_long().is_some_and(is_name)
                || argument
                    .get_all_aliases()
                    .is_some_and(|all| all.contains(&name))
        })
    }

    /// Returns whether this is the flag of a setting that the command does not take.
    fn refuses(&self, name: &str) -> bool {
        let mut settings = TABLE.iter().filter(|setting| setting.flag == name);
        settings.any(|setting| !setting.is_flag_of(&self.words))
    }

    /// Returns the remedy for a flag that the command does not have there.
    fn remedy(&self, flag: &str) -> Option<String> {
        let Self { words, .. } = self;
        let name = flag.strip_prefix("--")?.replace('_', "-");
        if words.is_empty() {
            return None;
        }
        let filter = FILTERS.iter().find(|(setting, _)| *setting == name);
        let filter = filter.map(|(_, filter)| *filter);
        if !self.refuses(&name) {
            return self.elsewhere(&name).or_else(|| {
                self.has(&name).then(|| match flag.contains('_') {
                    true => format!("{flag} is no option: write --{name}"),
                    false => format!(
                        "--{name} is an option of `jobwire {words}`: write it behind the command"
                    ),
                })
            });
        }
        let remedy = match filter {
            Some(filter) if self.has(filter) => format!("the filter is --{filter}"),
            Some(filter) => match self.elsewhere(filter) {
                Some(remedy) => remedy,
                None => leave_out(&name),
            },
            None => leave_out(&name),
        };
        Some(format!(
            "{flag}: `{name}` is a setting of a node, and `jobwire {words}` does not use it; {remedy}"
        ))
    }

    /// Returns the command that has this scope, if a command for scopes lacks it.
    fn elsewhere(&self, name: &str) -> Option<String> {
        let (at, others) = ELSEWHERE.iter().find_map(|(commands, scopes, others)| {
            let at = commands.iter().position(|command| *command == self.words)?;
            scopes.contains(&name).then_some((at, others))
        })?;
        let (words, other) = (&self.words, others.get(at)?);
        Some(format!(
            "`jobwire {words}` has no scope --{name}: use `jobwire {other} --{name}`"
        ))
    }
}

fn leave_out(name: &str) -> String {
    format!("leave it out, or give it to the node: `jobwire run --{name}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(line: &str) -> String {
        let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match matches(&line).expect_err("refused") {
            Mistaken::Said(said) => said,
            Mistaken::Clap(error) => error.to_string(),
        }
    }

    #[test]
    fn a_setting_of_a_node_is_no_filter_of_another_command() {
        for (line, remedy) in [
            (
                "jobs delete --all --tenants acme --yes",
                "the filter is --tenant",
            ),
            (
                "jobs delete --all --tenants=acme --yes",
                "the filter is --tenant",
            ),
            (
                "--tenants acme jobs delete --all --yes",
                "the filter is --tenant",
            ),
            (
                "jobs cancel --all --max-priority 0 --yes",
                "the filter is --priority-at-most",
            ),
            (
                "jobs list --min-priority -3",
                "the filter is --priority-at-least",
            ),
            (
                "jobs list --min_priority 3",
                "the filter is --priority-at-least",
            ),
            (
                "engine jobs retry --all --categories a",
                "the filter is --category",
            ),
            (
                "jobs retry --all --deployments a",
                "the filter is --deployment",
            ),
            ("jobs list --lanes bulk", "the filter is --lane"),
            ("pause --all --lanes bulk", "the filter is --lane"),
            (
                "pause --all --tenants acme",
                "use `jobwire suspend --tenant`",
            ),
            ("purge --tenants acme --yes", "the filter is --tenant"),
            (
                "lanes list --tenants acme",
                "leave it out, or give it to the node",
            ),
            (
                "batches list --concurrency 3",
                "leave it out, or give it to the node",
            ),
            ("migrate up --lease 3s", "`jobwire run --lease`"),
        ] {
            let said = mistake(&format!("jobwire {line}"));
            assert!(said.contains("setting of a node"), "{line}: {said}");
            assert!(said.contains(remedy), "{line}: {remedy} in {said}");
        }
    }

    #[test]
    fn the_scope_of_another_command_is_told_with_that_command() {
        for (line, remedy) in [
            ("suspend --lane bulk", "use `jobwire pause --lane`"),
            ("activate --all", "use `jobwire resume --all`"),
            ("suspend --category a", "use `jobwire pause --category`"),
            ("pause --tenant acme", "use `jobwire suspend --tenant`"),
            (
                "resume --process-instance i",
                "use `jobwire activate --process-instance`",
            ),
            ("--tenant acme jobs list", "write it behind the command"),
            ("jobs list --tenant_like a", "write --tenant-like"),
            ("engine --lanes bulk run", "write it behind the command"),
        ] {
            let said = mistake(&format!("jobwire {line}"));
            assert!(said.contains(remedy), "{line}: {remedy} in {said}");
        }
    }

    #[test]
    fn a_tip_names_an_option_that_the_command_takes() {
        for (line, tip) in [
            ("run --tennants acme", Some("'--tenants'")),
            ("jobs list --tennant acme", Some("'--tenant'")),
            ("jobs list --databse sqlite:x.db", Some("'--database'")),
            ("--tennants acme jobs list", None),
        ] {
            let said = mistake(&format!("jobwire {line}"));
            match tip {
                Some(tip) => assert!(said.contains(tip), "{line}: {said}"),
                None => assert!(!said.contains("similar"), "{line}: {said}"),
            }
        }
    }
}
