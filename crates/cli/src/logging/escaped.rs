//! Writes each log event in one line, for any content of its fields.

use std::borrow::Cow;
use std::io::{self, Write};

use jobwire_core::telemetry::plain;
use serde_json::{Value, json};

/// Maximum number of bytes of an event; the rest is cut.
const LONGEST: usize = 16 * 1024;
/// Maximum number of bytes of a text in a JSON document that is longer than an event may be.
const LONGEST_TEXT: usize = 2 * 1024;

/// Writes events, each given in one call. Keeps the colour codes that the formatter adds.
pub(super) struct Escaped<W> {
    to: W,
    ansi: bool,
}

impl<W> Escaped<W> {
    pub(super) fn new(to: W, ansi: bool) -> Self {
        Self { to, ansi }
    }
}

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = line(&text, self.ansi);
        self.to.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes events that are JSON documents, each given in one call. The formatter escapes only the
/// characters that JSON forbids; a terminal interprets more characters.
pub(super) struct EscapedJson<W> {
    to: W,
}

impl<W> EscapedJson<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to }
    }
}

impl<W: Write> Write for EscapedJson<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        self.to
            .write_all(plain::json(&short_json(&text)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Cuts the texts of an event that is too long. The result is a JSON document, too.
fn short_json(event: &str) -> Cow<'_, str> {
    if event.len() <= LONGEST {
        return event.into();
    }
    let mut document: Value = serde_json::from_str(event).unwrap_or_default();
    cut(&mut document);
    let text = document.to_string();
    let short = if text.len() > LONGEST || document.is_null() {
        // It has very many fields, or long names.
        let of = |name: &str| document.get(name).and_then(Value::as_str).map(beginning);
        json!({
            "timestamp": of("timestamp"), "level": of("level"), "target": of("target"),
            "event": beginning(event),
        })
    } else {
        document
    };
    format!("{short}\n").into()
}

/// Returns the beginning of a text.
fn beginning(text: &str) -> String {
    plain::one_line(text, LONGEST_TEXT / 4)
}

/// Cuts each text in a document.
fn cut(document: &mut Value) {
    match document {
        Value::String(text) if text.len() > LONGEST_TEXT => {
            text.truncate(text.floor_char_boundary(LONGEST_TEXT));
            text.push('…');
        }
        Value::Array(values) => values.iter_mut().for_each(cut),
        Value::Object(fields) => fields.values_mut().for_each(cut),
        _ => {}
    }
}

fn line(event: &str, ansi: bool) -> Cow<'_, str> {
    let (body, end) = match event.strip_suffix('\n') {
        Some(body) => (body, "\n"),
        None => (event, ""),
    };
    if body.len() <= LONGEST && !body.chars().any(plain::is_active) {
        return event.into();
    }
    let mut line = String::with_capacity(body.len().min(LONGEST));
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        if line.len() >= LONGEST {
            line.push('…');
            break;
        }
        let colour = if ansi { colour(rest) } else { 0 };
        let (taken, left) = rest.split_at(colour.max(c.len_utf8()));
        if colour > 0 {
            line.push_str(taken);
        } else {
            line.push_str(&plain::one_line(taken, 1));
        }
        rest = left;
    }
    line.push_str(end);
    line.into()
}

/// Returns the length of a colour code at the start of the text. The formatter escapes colour codes
/// in fields.
fn colour(text: &str) -> usize {
    let Some(code) = text.strip_prefix("\u{1b}[") else {
        return 0;
    };
    let digits = code
        .bytes()
        .take_while(|b| b.is_ascii_digit() || *b == b';')
        .count();
    if code.as_bytes().get(digits) == Some(&b'm') {
        digits + 3
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(event: &str, ansi: bool) -> String {
        let mut to = Vec::new();
        let mut writer = Escaped::new(&mut to, ansi);
        writer.write_all(event.as_bytes()).expect("a vector");
        String::from_utf8(to).expect("text")
    }

    #[test]
    fn an_event_is_one_line() {
        let event = "WARN failed error=no\n2026 INFO forged\u{1b}[2J\u{1b}[31m\n";
        let line = written(event, false);
        assert_eq!(
            line,
            "WARN failed error=no\\n2026 INFO forged\\u{1b}[2J\\u{1b}[31m\n"
        );
        assert_eq!(written("INFO all is well\n", false), "INFO all is well\n");
    }

    #[test]
    fn an_event_as_json_means_the_same_and_moves_no_cursor() {
        let evil = "a\u{1b}[2J\u{7f}\u{9b}31m\\\u{85}\"\u{202e}b ü 😀\nINFO forged";
        let event = serde_json::json!({ "fields": { "error": evil } });
        let mut to = Vec::new();
        let mut writer = EscapedJson::new(&mut to);
        writer
            .write_all(format!("{event}\n").as_bytes())
            .expect("a vector");
        let line = String::from_utf8(to).expect("text");
        let body = line.strip_suffix('\n').expect("one line");
        assert!(!body.chars().any(plain::is_active), "{body:?}");
        let read: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(read, event);
    }

    #[test]
    fn the_formatters_colours_stay() {
        let event = "\u{1b}[2m2026\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m a\u{1b}[2Jb\n";
        let line = written(event, true);
        assert_eq!(line, event.replace("\u{1b}[2J", "\\u{1b}[2J"));
    }

    #[test]
    fn a_long_event_is_cut() {
        let line = written(&format!("{}\n", "x".repeat(1_000_000)), false);
        assert!(line.len() < LONGEST + 10 && line.ends_with("…\n"));
    }

    #[test]
    fn a_long_json_event_is_cut_and_stays_json() {
        let long = "ä".repeat(LONGEST);
        let many: serde_json::Map<_, _> = (0..LONGEST).map(|n| (n.to_string(), n.into())).collect();
        for event in [
            json!({ "level": "WARN", "fields": { "message": "failed", "error": long, "list": [long] } }),
            json!({ "level": "WARN", "fields": many }),
        ] {
            let mut to = Vec::new();
            let mut writer = EscapedJson { to: &mut to };
            let event = format!("{event}\n");
            writer.write_all(event.as_bytes()).expect("a vector");
            let line = String::from_utf8(to).expect("text");
            assert!(
                line.len() <= LONGEST && line.ends_with('\n'),
                "{}",
                line.len()
            );
            let read: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(read["level"], "WARN");
        }
    }
}
