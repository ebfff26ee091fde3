//! The place in a list of attempts at which its next page begins.

use std::fmt;
use std::str::FromStr;

use super::{AttemptSort, AttemptView};
use crate::job::Fence;
use crate::job::query::cursor_text;

/// The first byte of a cursor: the form of its bytes. No other cursor begins with it.
const FORM: u8 = b'a';

/// The place behind an attempt in a sorted list. As text it is opaque: its form may change with the
/// next version.
///
/// The next page begins with the first attempt behind this place, whether or not the attempt itself
/// still exists. An attempt never changes its place. Its row appears when the attempt ends, so a
/// long attempt may appear between others that are listed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptCursor {
    pub(crate) sort: AttemptSort,
    pub(crate) fence: Fence,
}

/// A text that is no cursor of a list of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a cursor of a list of attempts; pass the cursor that the page before returned, \
     unchanged, or leave it out for the first page"
)]
pub struct BadAttemptCursor;

impl AttemptCursor {
    /// Returns the place behind an attempt in a list of this order.
    #[must_use]
    pub const fn after(view: &AttemptView, sort: AttemptSort) -> Self {
        let fence = view.fence;
        Self { sort, fence }
    }

    /// Returns the order of the list.
    #[must_use]
    pub const fn sort(&self) -> AttemptSort {
        self.sort
    }
}

impl fmt::Display for AttemptCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sort = match self.sort {
            AttemptSort::Newest => 0,
            AttemptSort::Oldest => 1,
        };
        let mut bytes = vec![FORM, sort];
        bytes.extend(self.fence.number().to_be_bytes());
        cursor_text::write(f, bytes)
    }
}

impl FromStr for AttemptCursor {
    type Err = BadAttemptCursor;

    fn from_str(text: &str) -> Result<Self, BadAttemptCursor> {
        read(text).ok_or(BadAttemptCursor)
    }
}

fn read(text: &str) -> Option<AttemptCursor> {
    let bytes = cursor_text::read(text)?;
    let ([FORM, sort], fence) = bytes.split_first_chunk::<2>()? else {
        return None;
    };
    let sort = match sort {
        0 => AttemptSort::Newest,
        1 => AttemptSort::Oldest,
        _ => return None,
    };
    let fence = Fence::new(i64::from_be_bytes(fence.try_into().ok()?));
    Some(AttemptCursor { sort, fence })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::query::JobCursor;

    #[test]
    fn a_cursor_of_attempts_is_read_as_it_was_written_and_refused_when_it_was_changed() {
        for (sort, fence) in [
            (AttemptSort::Newest, 17),
            (AttemptSort::Oldest, i64::MAX),
            (AttemptSort::Oldest, i64::MIN),
        ] {
            let fence = Fence::new(fence);
            let cursor = AttemptCursor { sort, fence };
            let text = cursor.to_string();
            assert_eq!(text.parse(), Ok(cursor));
            assert!(text.parse::<JobCursor>().is_err(), "{text}");
            for at in 0..text.len() {
                let mut changed = text.clone().into_bytes();
                changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
                let changed = String::from_utf8(changed).unwrap();
                for wrong in [&*changed, &text[..at]] {
                    assert_eq!(wrong.parse::<AttemptCursor>(), Err(BadAttemptCursor));
                }
            }
        }
        for wrong in ["", "é", "next", "0g", &"00".repeat(cursor_text::MAX_BYTES)] {
            assert_eq!(wrong.parse::<AttemptCursor>(), Err(BadAttemptCursor));
        }
    }
}
