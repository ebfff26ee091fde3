//! The texts of notifications: wakes, and control messages in parts.
//!
//! ```text
//! w1 <sender> <draw> <lane>=<jobs>,<lane>=<jobs>     jobs became ready; 0: some wait
//! c1 <sender> <message>/<part>/<parts> <text>        a part of a control message
//! p1 <sender>                                        a probe
//! ```
//! PostgreSQL takes less than 8,000 bytes. Any user of the database can send a text, so each is
//! read within bounds, and one that can't be read is ignored.

use super::Lanes;
use crate::job::Lane;
use crate::transport::MAX_CONTROL_BYTES;

/// The channel of all notifications. A database has one fleet.
pub(super) const CHANNEL: &str = "jobwire";
/// Maximum size of a text, in bytes.
const MOST: usize = 7_900;
/// The size of a part of a control message, in bytes.
const PART: usize = 7_800;

/// A text that was received.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Text<'a> {
    Wake {
        from: u64,
        draw: u64,
        lanes: Vec<(Lane, u64)>,
    },
    Part {
        from: u64,
        message: u64,
        part: usize,
        parts: usize,
        text: &'a str,
    },
    Probe {
        from: u64,
    },
}

/// Writes the wakes of these lanes, in as few texts as possible.
pub(super) fn wakes(from: u64, draw: u64, lanes: &Lanes) -> Vec<String> {
    let head = format!("w1 {from:x} {draw:x} ");
    let mut texts: Vec<String> = Vec::new();
    for (lane, jobs) in lanes {
        let entry = format!("{lane}={jobs}");
        match texts.last_mut() {
            Some(last) if last.len() + 1 + entry.len() <= MOST => {
                last.push(',');
                last.push_str(&entry);
            }
            _ => texts.push(format!("{head}{entry}")),
        }
    }
    texts
}

/// Writes a control message, in parts.
pub(super) fn parts(from: u64, message: u64, mut text: &str) -> Vec<String> {
    let mut cut = Vec::new();
    while !text.is_empty() {
        let end = text.floor_char_boundary(PART);
        let (part, rest) = text.split_at(end);
        cut.push(part);
        text = rest;
    }
    let parts = cut.len();
    let written = cut.into_iter().enumerate();
    written
        .map(|(part, text)| format!("c1 {from:x} {message:x}/{part}/{parts} {text}"))
        .collect()
}

pub(super) fn probe(from: u64) -> String {
    format!("p1 {from:x}")
}

/// Reads a text; `None` if it has no known form.
pub(super) fn read(text: &str) -> Option<Text<'_>> {
    let (form, rest) = text.split_once(' ')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    match form {
        "w1" => {
            let (from, rest) = rest.split_once(' ')?;
            let (draw, lanes) = rest.split_once(' ')?;
            let lanes = lanes.split(',').filter_map(|entry| {
                let (lane, jobs) = entry.split_once('=')?;
                Some((Lane::new(lane).ok()?, jobs.parse().ok()?))
            });
            Some(Text::Wake {
                from: hex(from)?,
                draw: hex(draw)?,
                lanes: lanes.collect(),
            })
        }
        "c1" => {
            let (from, rest) = rest.split_once(' ')?;
            let (place, text) = rest.split_once(' ')?;
            let mut place = place.split('/');
            let (message, part, parts) = (place.next()?, place.next()?, place.next()?);
            let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
            let most = MAX_CONTROL_BYTES.div_ceil(PART - 3);
            (part < parts && parts <= most).then_some(())?;
            Some(Text::Part {
                from: hex(from)?,
                message: hex(message)?,
                part,
                parts,
                text,
            })
        }
        "p1" => Some(Text::Probe { from: hex(rest)? }),
        _ => None,
    }
}

/// Puts the parts of control messages together. The parts of a message arrive one after the other,
/// because they are sent in one transaction.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// The sender, the message and the next part.
    next: Option<(u64, u64, usize)>,
    text: String,
}

impl Assembly {
    /// Adds a part. Returns the message with its last part. A part that does not follow the one
    /// before drops both.
    pub(super) fn add(
        &mut self,
        (from, message): (u64, u64),
        (part, parts): (usize, usize),
        text: &str,
    ) -> Option<String> {
        if part == 0 {
            self.text.clear();
        } else if self.next != Some((from, message, part)) {
            self.next = None;
            return None;
        }
        self.text.push_str(text);
        if part + 1 == parts {
            self.next = None;
            return Some(std::mem::take(&mut self.text));
        }
        self.next = Some((from, message, part + 1));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &str) -> Lane {
        Lane(name.to_owned())
    }

    #[test]
    fn wakes_are_read_as_they_were_written() {
        let lanes = Lanes::from([(lane("bulk"), 0), (lane("default"), 12)]);
        let texts = wakes(0xabc, 7, &lanes);
        assert_eq!(texts, ["w1 abc 7 bulk=0,default=12"]);
        let read = read(&texts[0]);
        let lanes = lanes.into_iter().collect();
        let (from, draw) = (0xabc, 7);
        assert_eq!(read, Some(Text::Wake { from, draw, lanes }));
    }

    #[test]
    fn many_lanes_are_spread_over_texts_that_postgresql_takes() {
        let name = |n: usize| lane(&format!("{n:064}"));
        let lanes: Lanes = (0..500).map(|n| (name(n), u64::MAX)).collect();
        let texts = wakes(u64::MAX, u64::MAX, &lanes);
        assert!(texts.iter().all(|text| text.len() < 8_000));
        let read = texts.iter().filter_map(|text| match read(text) {
            Some(Text::Wake { lanes, .. }) => Some(lanes.len()),
            _ => None,
        });
        assert_eq!(read.sum::<usize>(), 500);
    }

    #[test]
    fn a_long_message_is_cut_between_characters_and_put_together_again() {
        let long = "ä€𝄞x".repeat(6_000);
        let texts = parts(1, 2, &long);
        assert!(texts.len() > 1 && texts.iter().all(|text| text.len() < 8_000));
        let mut assembly = Assembly::default();
        let mut whole = Vec::new();
        for text in &texts {
            let Some(Text::Part {
                from,
                message,
                part,
                parts,
                text,
            }) = read(text)
            else {
                panic!("not read: {text}");
            };
            whole.extend(assembly.add((from, message), (part, parts), text));
        }
        assert_eq!(whole, [long]);
    }

    #[test]
    fn a_message_that_lacks_a_part_is_dropped() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add((1, 1), (0, 3), "a"), None);
        assert_eq!(assembly.add((1, 1), (2, 3), "c"), None);
        assert_eq!(assembly.add((1, 2), (0, 2), "d"), None);
        assert_eq!(assembly.add((2, 2), (1, 2), "x"), None);
        assert_eq!(assembly.add((1, 2), (1, 2), "e"), None);
        assert_eq!(assembly.add((1, 3), (0, 1), "f").as_deref(), Some("f"));
    }

    #[test]
    fn other_texts_are_ignored() {
        for text in [
            "",
            "w1",
            "w1 x 1 a=1",
            "w2 1 1 a=1",
            "c1 1 1/1/1 x",
            "c1 1 1/0/10000 x",
            "p1 -",
            "hello world",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        let odd = read("w1 1 1 a=1,b=x,ä=1,c");
        assert!(matches!(odd, Some(Text::Wake { lanes, .. }) if lanes == [(lane("a"), 1)]));
    }
}
