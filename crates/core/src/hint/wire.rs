//! Reads and writes the wire format, version 1.
//!
//! Publishers are not trusted. The reader is strict if leniency would become part of the format by
//! accident, and lenient if strictness would lose hints:
//!
//! * Unknown fields are skipped at any depth; a known field that occurs twice is refused.
//! * An object must be a JSON object: serde would also accept `[1, null, …]`.
//! * The whole message is UTF-8, including skipped fields. A byte order mark is not JSON.
//! * An instance that no job can have (see [`instance`]) is read as absent: the id is enough to
//!   find the job. In the database such an instance would fail the lock statement for every hint of
//!   the batch, each time.

use std::fmt;
use std::marker::PhantomData;

use chrono::{DateTime, Utc};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Body, Hint, MAX_HINTS_PER_MESSAGE, MAX_MESSAGE_BYTES, Marker, Message, UnreadableHint,
    WIRE_VERSION,
};

#[derive(Serialize)]
struct Written<'a> {
    v: u32,
    #[serde(skip_serializing_if = "Option::is_none", with = "micros")]
    at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "<[Hint]>::is_empty")]
    hints: &'a [Hint],
    #[serde(skip_serializing_if = "Option::is_none")]
    marker: Option<Marker>,
}

#[derive(Deserialize)]
struct Read {
    v: u32,
    #[serde(default, with = "micros")]
    at: Option<DateTime<Utc>>,
    #[serde(default)]
    hints: Vec<Object<Hint>>,
    #[serde(default)]
    marker: Option<Object<Marker>>,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

pub(super) fn encode(message: &Message) -> Vec<u8> {
    let (hints, marker): (&[Hint], _) = match &message.body {
        Body::Hints(hints) => (hints, None),
        Body::Marker(marker) => (&[], Some(*marker)),
    };
    let written = Written {
        v: WIRE_VERSION,
        at: message.published_at,
        hints,
        marker,
    };
    // Serialisation of plain structs of strings and numbers does not fail.
    serde_json::to_vec(&written).unwrap_or_default()
}

pub(super) fn decode(bytes: &[u8]) -> Result<Message, UnreadableHint> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(UnreadableHint::TooLarge(bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| UnreadableHint::Malformed(e.to_string()))?;
    let Object(read) = match serde_json::from_str::<Object<Read>>(text) {
        Ok(read) => read,
        // Another version may have other fields: read only the version.
        Err(e) => {
            return Err(match serde_json::from_str::<Object<Version>>(text) {
                Ok(Object(Version { v })) if v != WIRE_VERSION => UnreadableHint::UnknownVersion(v),
                _ => UnreadableHint::Malformed(e.to_string()),
            });
        }
    };
    if read.v != WIRE_VERSION {
        return Err(UnreadableHint::UnknownVersion(read.v));
    }
    let body = match (read.marker, read.hints.len()) {
        (Some(Object(marker)), 0) => Body::Marker(marker),
        (Some(_), _) => {
            let problem = "it has a marker and hints; leave the marker out";
            return Err(UnreadableHint::Malformed(problem.to_owned()));
        }
        (None, 1..=MAX_HINTS_PER_MESSAGE) => {
            let hints = read.hints.into_iter();
            Body::Hints(hints.map(|Object(hint)| hint).collect())
        }
        (None, count) => return Err(UnreadableHint::BadCount(count)),
    };
    Ok(Message {
        published_at: read.at,
        body,
    })
}

/// A struct that is read from a JSON object only.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// Process instances and types. A value is sent only if a job can have it: at most
/// [`MAX_FIELD_BYTES`](crate::job::new_job::MAX_FIELD_BYTES), and no NUL (no database accepts it).
pub(super) mod instance {
    use serde::{Deserialize, Deserializer};

    use crate::job::new_job::MAX_FIELD_BYTES;

    fn can_be(name: &str) -> bool {
        name.len() <= MAX_FIELD_BYTES && !name.contains('\0')
    }

    #[allow(clippy::ref_option, reason = "the signature that serde calls")]
    pub(in crate::hint) fn stays_out(instance: &Option<String>) -> bool {
        !instance.as_deref().is_some_and(can_be)
    }

    pub(in crate::hint) fn read<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<String>, D::Error> {
        let instance = Option::<String>::deserialize(from)?;
        Ok(instance.filter(|name| can_be(name)))
    }
}

/// Times as microseconds since 1970 UTC: short, and the same in every language.
pub(super) mod micros {
    use chrono::{DateTime, Utc};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::ref_option, reason = "the signature that serde calls")]
    pub(in crate::hint) fn serialize<S: Serializer>(
        at: &Option<DateTime<Utc>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => to.serialize_i64(at.timestamp_micros()),
            None => to.serialize_none(),
        }
    }

    pub(in crate::hint) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<DateTime<Utc>>, D::Error> {
        Option::<i64>::deserialize(from)?
            .map(|micros| {
                DateTime::from_timestamp_micros(micros)
                    .ok_or_else(|| D::Error::custom("the time is out of range"))
            })
            .transpose()
    }
}
