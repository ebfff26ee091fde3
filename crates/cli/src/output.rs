//! Prints results to standard output. A closed output ends the command without a panic (`jobwire
//! jobs list | head`).

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use serde::Serialize;

use jobwire_core::job::query::UnservedScope;
use jobwire_core::telemetry::plain;

use crate::error::Error;

fn written(result: std::io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Error::OutputClosed),
        Err(error) => Err(Error::io("can't write the output")(error)),
        Ok(()) => Ok(()),
    }
}

/// Prints one or more lines. Escapes characters that a terminal interprets, except for line ends.
/// To print text from outside in one line, escape line ends, too ([`plain::one_line`]).
///
/// # Errors
/// [`Error::OutputClosed`] if the output is closed.
pub fn line(text: impl Display) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let text = plain::lines(&text.to_string());
    written(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// Prints one JSON document.
///
/// # Errors
/// The same as those of [`line()`].
pub fn json(value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::Failed(format!("the result can't be written as JSON: {e}")))?;
    line(plain::json(&text))
}

/// Formats a word for a command line that the user copies to a shell: quoted, unless no shell interprets
/// it. Escapes characters that a terminal interprets in the form `$'…'`, which bash, zsh and ksh read.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.chars().any(plain::is_active) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        match c {
            '\\' | '\'' => word.extend(['\\', c]),
            c if plain::is_active(c) => word.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => word.push(c),
        }
    }
    word + "'"
}

/// Formats an option of a command line, like [`shell_word`]: `--name value`, or `--name=value` if the value
/// would be read as an option.
#[must_use]
pub fn shell_option(name: &str, value: &str) -> String {
    let separator = if value.starts_with('-') { '=' } else { ' ' };
    format!("--{name}{separator}{}", shell_word(value))
}

/// Formats a count: `1 job`, `2 jobs`.
#[must_use]
pub fn count(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        many => format!("{many} {noun}s"),
    }
}

/// Formats what excludes jobs from all nodes of their type, in one line.
#[must_use]
pub fn scopes(scopes: &[UnservedScope]) -> String {
    let named: Vec<String> = scopes
        .iter()
        .map(|scope| plain::one_line(&scope.to_string(), 800))
        .collect();
    named.join(", ")
}

/// Prints a table. Each column is as wide as its widest cell.
///
/// # Errors
/// The same as those of [`line()`].
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> Result<(), Error> {
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| std::array::from_fn(|at| plain::one_line(&row[at], usize::MAX)))
        .collect();
    let mut widths = head.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (cell, width) in cells.zip(widths) {
            let pad = width.saturating_sub(cell.chars().count());
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', pad + 2));
        }
        line(text.trim_end())
    };
    print(&mut head.into_iter())?;
    rows.iter()
        .try_for_each(|row| print(&mut row.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::{shell_option, shell_word};

    #[test]
    fn a_word_from_outside_is_one_word_for_the_shell() {
        for (text, word) in [
            ("invoice:3:4711", "invoice:3:4711"),
            ("", "''"),
            ("a b", "'a b'"),
            (";rm -r $HOME;", "';rm -r $HOME;'"),
            ("it's", r"'it'\''s'"),
            ("x\ny'\\", r"$'x\u000ay\'\\'"),
            ("*", "'*'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
        assert_eq!(shell_option("lane", "a b"), "--lane 'a b'");
        assert_eq!(shell_option("lane", "-x"), "--lane=-x");
    }
}
