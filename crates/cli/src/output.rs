//! Prints results to standard output. A closed output ends the command without a panic (`jobwire
//! jobs list | head`).

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use serde::Serialize;

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

/// Formats a count: `1 job`, `2 jobs`.
#[must_use]
pub fn count(number: impl Into<u64>, noun: &str) -> String {
    match number.into() {
        1 => format!("1 {noun}"),
        many => format!("{many} {noun}s"),
    }
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
