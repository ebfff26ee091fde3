//! Settings in `jobwire.toml`: flat keys, as in the table.
//!
//! ```toml
//! database_url = "postgres://jobwire@db/jobs"
//! concurrency = 32
//! lease = "30s"
//! lanes = ["default", "bulk"]
//! ```

use std::io::Read as _;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{AllGiven, Given, Mistake, Origin, TABLE, closest};

/// Maximum size of the file; a file of settings has some kilobytes.
const LARGEST: u64 = 1 << 20;

/// The file to read.
pub(super) enum Which {
    /// A file that was named, with the source of its name; it must exist.
    Named(PathBuf, Origin),
    /// A file that is read if it exists.
    Default(PathBuf),
}

pub(super) fn read(which: &Which, mistakes: &mut Vec<Mistake>) -> AllGiven {
    let (Which::Named(path, _) | Which::Default(path)) = which;
    let text = match contents(path) {
        Ok(text) => text,
        Err(error) => {
            let origin = match which {
                Which::Named(_, origin) => origin.clone(),
                Which::Default(_) if error.kind() == std::io::ErrorKind::NotFound => {
                    return AllGiven::new();
                }
                Which::Default(_) => Origin::Default,
            };
            mistakes.push(Mistake {
                setting: "config".to_owned(),
                value: Some(path.display().to_string()),
                origin,
                problem: format!("the file can't be read: {error}; give another one with --config"),
            });
            return AllGiven::new();
        }
    };
    parse(path, &text, mistakes)
}

/// Reads the file. Refuses a large file, which is the wrong one or an endless device.
fn contents(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(LARGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST {
        let problem = format!("it is larger than {LARGEST} bytes, so it is not a file of settings");
        return Err(std::io::Error::other(problem));
    }
    Ok(text)
}

fn at(path: &Path, line: usize) -> Origin {
    Origin::File {
        path: path.to_owned(),
        line,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
}

fn parse(path: &Path, text: &str, mistakes: &mut Vec<Mistake>) -> AllGiven {
    let mut given = AllGiven::new();
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            mistakes.push(Mistake {
                setting: "config".to_owned(),
                value: None,
                origin: at(path, line),
                // The parser's excerpt is left out, because it may show a password.
                problem: format!("this is not TOML: {}", error.message()),
            });
            return given;
        }
    };
    for (key, value) in table.get_ref() {
        let origin = at(path, line_of(text, key.span().start));
        let Some(setting) = TABLE.iter().find(|s| s.key == &**key.get_ref()) else {
            mistakes.push(unknown(key.get_ref(), origin));
            continue;
        };
        match as_text(value) {
            Ok(text) => {
                given.insert(setting.key, Given { text, origin });
            }
            Err(problem) => mistakes.push(Mistake {
                setting: setting.key.to_owned(),
                value: None,
                origin,
                problem: problem.to_owned(),
            }),
        }
    }
    given
}

/// Returns a setting's value in the form of the command line.
fn as_text(value: &Spanned<DeValue<'_>>) -> Result<String, &'static str> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Boolean(yes) => Ok(yes.to_string()),
        DeValue::Array(items) => {
            let words: Option<Vec<&str>> = items
                .iter()
                .map(|item| match item.get_ref() {
                    DeValue::String(word) => Some(&**word),
                    _ => None,
                })
                .collect();
            words
                .map(|words| words.join(","))
                .ok_or("a list must hold strings: [\"a\", \"b\"]")
        }
        DeValue::Table(_) => Err("is a table; write settings flat, as `key = value`"),
        DeValue::Float(_) | DeValue::Datetime(_) => {
            Err("write a string, a whole number, `true` or `false`; durations as \"30s\"")
        }
    }
}

fn unknown(key: &str, origin: Origin) -> Mistake {
    let meant = TABLE
        .iter()
        .find(|s| s.flag == key || s.key == key.replace('-', "_"))
        .map(|s| s.key)
        .or_else(|| closest(key, TABLE.iter().map(|s| s.key)));
    Mistake {
        setting: key.to_owned(),
        value: None,
        origin,
        problem: match meant {
            Some(meant) => format!("there is no such setting; did you mean `{meant}`?"),
            None => "there is no such setting; remove it (`jobwire config` lists all)".to_owned(),
        },
    }
}
