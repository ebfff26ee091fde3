//! Reads messages of pgoutput, protocol version 1.
//!
//! Messages are not trusted: each length is checked against the number of bytes left, and the
//! number of remembered tables is limited.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::error::TapError;
use crate::event::{Change, Commit, Row, Table, Value};

/// Maximum number of tables that a stream may name. The server names each before its first row.
const TABLES: usize = 4_096;
/// The server's limit for the columns of a table.
const COLUMNS: usize = 1_600;
/// The time from 1970 to the server's epoch, 2000, in microseconds.
const EPOCH: i64 = 946_684_800_000_000;

/// A message of the stream, as far as the tap needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The rows of a transaction follow. It committed at this time.
    Begin(SystemTime),
    /// A row was inserted or updated.
    Row(Arc<Table>, Row),
    /// The transaction has no more rows.
    Commit(Commit),
    /// A message that reports no row: a table, a type, an origin, a deletion, a TRUNCATE, or a
    /// message of another program.
    Other,
}

/// Decodes messages, and remembers the tables that they name.
#[derive(Debug, Default)]
pub(crate) struct Decoder(HashMap<u32, Arc<Table>>);

impl Decoder {
    pub(crate) fn decode(&mut self, message: Bytes) -> Result<Message, TapError> {
        let mut bytes = Reader(message);
        match bytes.u8()? {
            b'B' => {
                bytes.skip(8)?;
                Ok(Message::Begin(bytes.time()?))
            }
            b'C' => {
                bytes.skip(1 + 8)?;
                Ok(Message::Commit(Commit {
                    position: bytes.u64()?,
                    committed_at: bytes.time()?,
                }))
            }
            b'R' => {
                let id = bytes.u32()?;
                let table = bytes.table()?;
                if self.0.len() >= TABLES && !self.0.contains_key(&id) {
                    return Err(broken("it names too many tables"));
                }
                self.0.insert(id, Arc::new(table));
                Ok(Message::Other)
            }
            b'I' => {
                let table = self.table(bytes.u32()?)?;
                if bytes.u8()? != b'N' {
                    return Err(broken("an insert has no new row"));
                }
                let row = bytes.row(Change::Insert, &table)?;
                Ok(Message::Row(table, row))
            }
            b'U' => {
                let table = self.table(bytes.u32()?)?;
                let mut tuple = bytes.u8()?;
                if matches!(tuple, b'K' | b'O') {
                    bytes.row(Change::Update, &table)?;
                    tuple = bytes.u8()?;
                }
                if tuple != b'N' {
                    return Err(broken("an update has no new row"));
                }
                let row = bytes.row(Change::Update, &table)?;
                Ok(Message::Row(table, row))
            }
            _ => Ok(Message::Other),
        }
    }

    fn table(&self, id: u32) -> Result<Arc<Table>, TapError> {
        let table = self.0.get(&id).cloned();
        table.ok_or_else(|| broken("a row has a table that was not named"))
    }
}

fn broken(what: &str) -> TapError {
    TapError::Protocol(what.to_owned())
}

/// Converts the server's time, in microseconds since 2000.
pub(crate) fn time(micros: i64) -> SystemTime {
    let since_1970 = micros.saturating_add(EPOCH);
    let distance = Duration::from_micros(since_1970.unsigned_abs());
    let time = if since_1970 < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Returns the current time in microseconds since 2000.
pub(crate) fn now() -> i64 {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_1970.as_micros()).map_or(0, |micros| micros.saturating_sub(EPOCH))
}

/// The rest of a message.
struct Reader(Bytes);

impl Reader {
    fn take(&mut self, count: usize) -> Result<Bytes, TapError> {
        if count > self.0.len() {
            return Err(broken("a message ends too early"));
        }
        Ok(self.0.split_to(count))
    }

    fn skip(&mut self, count: usize) -> Result<(), TapError> {
        self.take(count).map(drop)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TapError> {
        let bytes = self.take(N)?;
        <[u8; N]>::try_from(&*bytes).map_err(|_| broken("a message ends too early"))
    }

    fn u8(&mut self) -> Result<u8, TapError> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, TapError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, TapError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, TapError> {
        self.array().map(u64::from_be_bytes)
    }

    fn time(&mut self) -> Result<SystemTime, TapError> {
        self.array().map(i64::from_be_bytes).map(time)
    }

    /// Reads text that ends with a zero byte.
    fn text(&mut self) -> Result<String, TapError> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| broken("a name has no end"))?;
        let text = self.take(end)?;
        self.skip(1)?;
        String::from_utf8(text.to_vec()).map_err(|_| broken("a name is not UTF-8"))
    }

    fn table(&mut self) -> Result<Table, TapError> {
        let (schema, name) = (self.text()?, self.text()?);
        self.skip(1)?;
        let columns = usize::from(self.u16()?);
        if columns > COLUMNS {
            return Err(broken("a table has too many columns"));
        }
        let columns = (0..columns).map(|_| {
            self.skip(1)?;
            let column = self.text()?;
            self.skip(4 + 4)?;
            Ok(column)
        });
        Ok(Table {
            // The server sends an empty name for the schema pg_catalog.
            schema: if schema.is_empty() {
                "pg_catalog".to_owned()
            } else {
                schema
            },
            name,
            columns: columns.collect::<Result<_, TapError>>()?,
        })
    }

    fn row(&mut self, change: Change, table: &Table) -> Result<Row, TapError> {
        let values = usize::from(self.u16()?);
        if values != table.columns.len() {
            return Err(broken("a row has other columns than its table"));
        }
        let values = (0..values).map(|_| match self.u8()? {
            b'n' => Ok(Value::Null),
            b'u' => Ok(Value::Unchanged),
            b't' => {
                let length = usize::try_from(self.u32()?);
                let length = length.map_err(|_| broken("a value is too long"))?;
                Ok(Value::Text(self.take(length)?))
            }
            _ => Err(broken("a value has an unknown form")),
        });
        Ok(Row {
            change,
            values: values.collect::<Result<_, TapError>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(id: u32, columns: &[&str]) -> Vec<u8> {
        let mut bytes = vec![b'R'];
        bytes.extend(id.to_be_bytes());
        bytes.extend(b"jobwire\0job\0d");
        bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
        for column in columns {
            bytes.push(1);
            bytes.extend(column.as_bytes());
            bytes.push(0);
            bytes.extend([0; 8]);
        }
        bytes
    }

    fn tuple(values: &[Option<&str>]) -> Vec<u8> {
        let mut bytes = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
        for value in values {
            match value {
                None => bytes.push(b'n'),
                Some("<unchanged>") => bytes.push(b'u'),
                Some(text) => {
                    bytes.push(b't');
                    bytes.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
                    bytes.extend(text.as_bytes());
                }
            }
        }
        bytes
    }

    fn change(tag: u8, id: u32, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend(id.to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    fn new(values: &[Option<&str>]) -> Vec<u8> {
        let mut bytes = vec![b'N'];
        bytes.extend(tuple(values));
        bytes
    }

    fn decoded(decoder: &mut Decoder, bytes: Vec<u8>) -> Message {
        decoder.decode(bytes.into()).unwrap()
    }

    #[test]
    fn an_inserted_row_has_the_values_of_its_columns() {
        let mut decoder = Decoder::default();
        let named = decoded(&mut decoder, relation(7, &["id", "lane", "tenant"]));
        assert_eq!(named, Message::Other);
        let insert = change(b'I', 7, &new(&[Some("17"), Some("default"), None]));
        let Message::Row(table, row) = decoded(&mut decoder, insert) else {
            panic!("not a row");
        };
        assert_eq!((&*table.schema, &*table.name), ("jobwire", "job"));
        assert_eq!(row.change, Change::Insert);
        assert_eq!(row.text(table.column("lane").unwrap()), Some("default"));
        assert_eq!(row.values[2], Value::Null);
        assert_eq!(row.text(2), None);
    }

    #[test]
    fn an_update_has_the_new_row_whatever_it_says_of_the_old_one() {
        let mut decoder = Decoder::default();
        decoded(&mut decoder, relation(7, &["id", "rev"]));
        for old in [None, Some(b'K'), Some(b'O')] {
            let mut rest = Vec::new();
            if let Some(old) = old {
                rest.push(old);
                rest.extend(tuple(&[Some("1"), Some("1")]));
            }
            rest.extend(new(&[Some("<unchanged>"), Some("2")]));
            let Message::Row(_, row) = decoded(&mut decoder, change(b'U', 7, &rest)) else {
                panic!("not a row");
            };
            assert_eq!(row.change, Change::Update);
            assert_eq!(row.values[0], Value::Unchanged);
            assert_eq!(row.text(1), Some("2"));
        }
    }

    #[test]
    fn a_transaction_has_the_time_of_its_commit() {
        let mut decoder = Decoder::default();
        let mut begin = vec![b'B'];
        begin.extend(1_u64.to_be_bytes());
        begin.extend(1_000_000_i64.to_be_bytes());
        begin.extend(5_u32.to_be_bytes());
        let at = UNIX_EPOCH + Duration::from_secs(946_684_801);
        assert_eq!(decoded(&mut decoder, begin), Message::Begin(at));
        let mut commit = vec![b'C', 0];
        commit.extend(1_u64.to_be_bytes());
        commit.extend(2_u64.to_be_bytes());
        commit.extend(1_000_000_i64.to_be_bytes());
        let expected = Commit {
            position: 2,
            committed_at: at,
        };
        assert_eq!(decoded(&mut decoder, commit), Message::Commit(expected));
    }

    #[test]
    fn a_table_that_changes_is_named_again() {
        let mut decoder = Decoder::default();
        decoded(&mut decoder, relation(7, &["id"]));
        decoded(&mut decoder, relation(7, &["id", "lane"]));
        let insert = change(b'I', 7, &new(&[Some("1"), Some("bulk")]));
        assert!(matches!(decoded(&mut decoder, insert), Message::Row(..)));
    }

    #[test]
    fn a_damaged_message_is_an_error_and_nothing_else() {
        let messages = [
            relation(7, &["id", "lane"]),
            change(b'I', 7, &new(&[Some("17"), None])),
            change(b'U', 7, &new(&[Some("17"), None])),
        ];
        for message in &messages {
            for end in 0..message.len() {
                let mut decoder = Decoder::default();
                if message[0] != b'R' {
                    decoder.decode(messages[0].clone().into()).unwrap();
                }
                let cut = decoder.decode(message[..end].to_vec().into());
                assert!(matches!(cut, Err(TapError::Protocol(_))), "{end}: {cut:?}");
            }
            for at in 0..message.len() {
                for bit in 0..8 {
                    let mut damaged = message.clone();
                    damaged[at] ^= 1 << bit;
                    let mut decoder = Decoder::default();
                    decoder.decode(messages[0].clone().into()).unwrap();
                    // The decoder must not panic, and must not allocate memory for a wrong length.
                    let _ = decoder.decode(damaged.into());
                }
            }
        }
    }

    #[test]
    fn a_row_of_an_unknown_table_and_one_too_many_tables_are_refused() {
        let mut decoder = Decoder::default();
        let insert = change(b'I', 9, &new(&[Some("1")]));
        assert!(decoder.decode(insert.into()).is_err());
        for id in 0..u32::try_from(TABLES).unwrap() {
            decoder.decode(relation(id, &["id"]).into()).unwrap();
        }
        assert!(decoder.decode(relation(u32::MAX, &["id"]).into()).is_err());
        assert!(decoder.decode(relation(3, &["id", "lane"]).into()).is_ok());
    }

    #[test]
    fn times_far_away_are_no_panic() {
        for micros in [i64::MIN, -EPOCH - 1, 0, i64::MAX] {
            let _ = time(micros);
        }
    }
}
