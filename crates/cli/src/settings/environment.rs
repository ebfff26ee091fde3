//! Settings in the environment.

use std::path::PathBuf;

use super::{AllGiven, Given, Mistake, Origin, PREFIX, Setting, TABLE, closest};

/// The variable that names the file.
pub(super) const CONFIG: &str = "JOBWIRE_CONFIG";
/// The prefix of variables of the project's own tests, which are not settings.
const TESTS: &str = "JOBWIRE_TEST_";

/// The settings in the environment.
pub(super) struct Environment {
    pub(super) file: Option<PathBuf>,
    pub(super) given: AllGiven,
}

/// Reads the variables. An empty variable counts as not set, because compose files and unit files
/// write such variables.
pub(super) fn read(variables: &[(String, String)], mistakes: &mut Vec<Mistake>) -> Environment {
    let mut read = Environment {
        file: None,
        given: AllGiven::new(),
    };
    for (name, value) in variables {
        if !name.starts_with(PREFIX) || name.starts_with(TESTS) || value.is_empty() {
            continue;
        }
        let origin = Origin::Environment(name.clone());
        if name == CONFIG {
            read.file = Some(PathBuf::from(value));
        } else if let Some(setting) = TABLE.iter().find(|s| s.variable() == *name) {
            let text = value.clone();
            read.given.insert(setting.key, Given { text, origin });
        } else {
            mistakes.push(unknown(name, origin));
        }
    }
    read
}

fn unknown(name: &str, origin: Origin) -> Mistake {
    let names: Vec<String> = TABLE.iter().map(Setting::variable).collect();
    let flag = TABLE.iter().find(|s| {
        s.flag
            .replace('-', "_")
            .eq_ignore_ascii_case(&name[PREFIX.len()..])
    });
    let meant = flag
        .map(Setting::variable)
        .or_else(|| closest(name, names.iter().map(String::as_str)).map(str::to_owned));
    Mistake {
        setting: name.to_owned(),
        value: None,
        origin,
        problem: match meant {
            Some(meant) => format!("there is no such setting; did you mean {meant}?"),
            None => "there is no such setting; unset it (`jobwire config` lists all)".to_owned(),
        },
    }
}
