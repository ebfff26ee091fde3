//! Makes text from outside safe for a terminal or a log. An error message, a process instance or a
//! service's answer may contain escape sequences that move the cursor, and line ends that forge a
//! line.

use std::fmt::Write as _;

/// Returns whether this character is active: a control, a line or paragraph separator, or a
/// character that changes the direction of writing.
#[must_use]
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns the text in one line, with its [active](is_active) characters escaped as in Rust. The
/// line holds at most `most` characters of the text.
#[must_use]
pub fn one_line(text: &str, most: usize) -> String {
    let mut line = String::with_capacity(text.len().min(most));
    for (at, c) in text.chars().enumerate() {
        if at >= most {
            line.push('…');
            break;
        }
        push(&mut line, c);
    }
    line
}

/// Returns the whole text with its line ends, and with its other [active](is_active) characters
/// escaped.
#[must_use]
pub fn lines(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' {
            plain.push(c);
        } else {
            push(&mut plain, c);
        }
    }
    plain
}

/// Returns a JSON document with its line ends, and with its other [active](is_active) characters
/// escaped. Only strings in JSON can contain those, and there an escape has the same meaning.
#[must_use]
pub fn json(document: &str) -> String {
    let mut plain = String::with_capacity(document.len());
    for c in document.chars() {
        if c != '\n' && is_active(c) {
            // All active characters are in the basic plane. Writing to a string cannot fail.
            let _ = write!(plain, "\\u{:04x}", u32::from(c));
        } else {
            plain.push(c);
        }
    }
    plain
}

fn push(to: &mut String, c: char) {
    if is_active(c) {
        // Writing to a string cannot fail.
        let _ = write!(to, "{}", c.escape_default());
    } else {
        to.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let evil = "a\u{1b}[2J\r\nINFO forged\u{7f}\u{9b}31m\u{202e}b\u{2028}c";
        let plain = one_line(evil, 1_000);
        assert!(!plain.chars().any(is_active), "{plain:?}");
        assert!(plain.starts_with("a\\u{1b}[2J\\r\\nINFO forged"), "{plain}");
        let kept = lines("a\nb\u{1b}c");
        assert_eq!(kept, "a\nb\\u{1b}c");
    }

    #[test]
    fn what_is_long_is_cut_and_what_is_not_is_left_alone() {
        assert_eq!(one_line("Grüße 😀", 100), "Grüße 😀");
        assert_eq!(
            one_line(&"x".repeat(50), 10),
            format!("{}…", "x".repeat(10))
        );
        assert_eq!(one_line("0123456789", 10), "0123456789");
    }
}
