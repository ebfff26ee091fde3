//! The place in a list at which its next page begins.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::job::JobId;
use crate::job::query::{JobSort, JobView, SortBy, cursor_text};

/// The value of the last job of a page in the field by which the list is sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CursorKey {
    /// No value. Also the key of a list that is sorted by id alone.
    Missing,
    Number(i64),
    Text(String),
}

/// The place behind a job in a sorted list. As text it is opaque: its form may change with the next
/// version.
///
/// The next page begins with the first job behind this place, whether or not the job itself still
/// exists. So a list that changes between two pages neither skips nor repeats a job that keeps its
/// place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCursor {
    pub(crate) sort: JobSort,
    pub(crate) key: CursorKey,
    pub(crate) id: JobId,
}

/// A text that is no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not a cursor of a list of jobs; pass the cursor that the page before returned, \
     unchanged, or leave it out for the first page"
)]
pub struct BadCursor;

impl JobCursor {
    /// Returns the place behind a job in a list of this order.
    #[must_use]
    pub fn after(view: &JobView, sort: JobSort) -> Self {
        Self {
            sort,
            key: sort.key(view),
            id: view.id,
        }
    }

    /// Returns the order of the list.
    #[must_use]
    pub const fn sort(&self) -> JobSort {
        self.sort
    }

    /// Returns whether a job is behind this place.
    #[must_use]
    pub fn is_before(&self, view: &JobView) -> bool {
        let key = self.sort.key(view);
        let place = (&self.key, self.id.uuid());
        self.sort
            .compare_keys(place, (&key, view.id.uuid()))
            .is_lt()
    }
}

/// The number at the beginning of a cursor: the form of its bytes.
const FORM: u8 = 1;

impl fmt::Display for JobCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = SortBy::ALL.iter().position(|by| *by == self.sort.by);
        let by = u8::try_from(by.unwrap_or_default()).unwrap_or_default();
        let mut bytes = vec![FORM, by * 2 + u8::from(self.sort.descending)];
        bytes.extend(self.id.uuid().as_bytes());
        match &self.key {
            CursorKey::Missing => bytes.push(0),
            CursorKey::Number(number) => {
                bytes.push(1);
                bytes.extend(number.to_be_bytes());
            }
            CursorKey::Text(text) => {
                bytes.push(2);
                bytes.extend(text.as_bytes());
            }
        }
        cursor_text::write(f, bytes)
    }
}

impl FromStr for JobCursor {
    type Err = BadCursor;

    fn from_str(text: &str) -> Result<Self, BadCursor> {
        read(text).ok_or(BadCursor)
    }
}

fn read(text: &str) -> Option<JobCursor> {
    let bytes = cursor_text::read(text)?;
    let ([FORM, sort], rest) = bytes.split_first_chunk::<2>()? else {
        return None;
    };
    let (id, rest) = rest.split_first_chunk::<16>()?;
    let by = *SortBy::ALL.get(usize::from(sort / 2))?;
    let (kind, rest) = rest.split_first()?;
    let key = match kind {
        0 if rest.is_empty() => CursorKey::Missing,
        1 => CursorKey::Number(i64::from_be_bytes(rest.try_into().ok()?)),
        2 if !rest.contains(&0) => CursorKey::Text(String::from_utf8(rest.to_vec()).ok()?),
        _ => return None,
    };
    let fits = match by {
        SortBy::Id => key == CursorKey::Missing,
        SortBy::Creation | SortBy::Created | SortBy::Priority | SortBy::Retries => {
            matches!(key, CursorKey::Number(_))
        }
        SortBy::Due => !matches!(key, CursorKey::Text(_)),
        SortBy::Instance
        | SortBy::Definition
        | SortBy::Tenant
        | SortBy::Execution
        | SortBy::DefinitionKey => !matches!(key, CursorKey::Number(_)),
        SortBy::Type => matches!(key, CursorKey::Text(_)),
    };
    fits.then(|| JobCursor {
        sort: JobSort {
            by,
            descending: sort % 2 == 1,
        },
        key,
        id: JobId::from_uuid(Uuid::from_bytes(*id)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(sort: JobSort, key: CursorKey) -> JobCursor {
        JobCursor {
            sort,
            key,
            id: JobId::generate(),
        }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        for cursor in [
            cursor(JobSort::default(), CursorKey::Number(-7)),
            cursor(JobSort::descending(SortBy::Due), CursorKey::Missing),
            cursor(
                JobSort::descending(SortBy::Due),
                CursorKey::Number(i64::MIN),
            ),
            cursor(
                JobSort::ascending(SortBy::Tenant),
                CursorKey::Text("é".repeat(512)),
            ),
            cursor(JobSort::ascending(SortBy::Id), CursorKey::Missing),
            cursor(
                JobSort::descending(SortBy::Execution),
                CursorKey::Text("e1".to_owned()),
            ),
        ] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
    }

    #[test]
    fn a_changed_cursor_is_refused() {
        let text = cursor(
            JobSort::descending(SortBy::Type),
            CursorKey::Text("work".to_owned()),
        )
        .to_string();
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(changed.parse::<JobCursor>(), Err(BadCursor), "{at}");
            assert_eq!(text[..at].parse::<JobCursor>(), Err(BadCursor), "{at}");
        }
        let of_another_type = cursor(JobSort::ascending(SortBy::Type), CursorKey::Number(1));
        for wrong in [
            "",
            "é",
            "0g",
            "next",
            &of_another_type.to_string(),
            &"00".repeat(cursor_text::MAX_BYTES),
        ] {
            assert_eq!(wrong.parse::<JobCursor>(), Err(BadCursor), "{wrong}");
        }
    }
}
