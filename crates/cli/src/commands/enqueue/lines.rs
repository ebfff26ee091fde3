//! Reads lines of bounded length.

use std::io::{BufRead, Read};

/// The maximum length of a line: the largest payload, fully escaped, and the other fields.
pub(super) const MAX_LINE: usize = 4 << 20;

/// The reason why a line is refused.
#[derive(Debug)]
pub(super) enum BadLine {
    /// The line is longer than [`MAX_LINE`].
    TooLong,
    /// The input can't be read.
    Unreadable(std::io::Error),
}

/// Reads the next line into `line`, without its line ending. Returns the number of bytes read; 0 at
/// the end of the input.
pub(super) fn next(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<usize, BadLine> {
    line.clear();
    let limit = MAX_LINE as u64 + 1;
    let read = input
        .by_ref()
        .take(limit)
        .read_until(b'\n', line)
        .map_err(BadLine::Unreadable)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    } else if line.len() > MAX_LINE {
        return Err(BadLine::TooLong);
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_without_their_ends() {
        let mut input = &b"one\r\n\ntwo"[..];
        let mut line = Vec::new();
        let mut all = Vec::new();
        while next(&mut input, &mut line).expect("readable") > 0 {
            all.push(String::from_utf8(line.clone()).expect("text"));
        }
        assert_eq!(all, ["one", "", "two"]);
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let mut input = std::io::BufReader::new(std::io::repeat(b'x'));
        let mut line = Vec::new();
        assert!(matches!(next(&mut input, &mut line), Err(BadLine::TooLong)));
        assert!(line.len() <= MAX_LINE + 1);
    }
}
