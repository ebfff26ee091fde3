//! Tests against docs/reference/hint-vectors.json, read as another implementation would read it.

use chrono::DateTime;
use serde_json::Value;

use super::*;

/// Returns the messages of the file with their bytes.
pub(super) fn messages() -> Vec<(Value, Vec<u8>)> {
    let messages = section("messages").into_iter();
    messages
        .map(|vector| {
            let bytes = bytes(&vector);
            (vector, bytes)
        })
        .collect()
}

fn section(name: &str) -> Vec<Value> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/hint-vectors.json"
    );
    let vectors: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    vectors[name].as_array().unwrap().clone()
}

fn bytes(vector: &Value) -> Vec<u8> {
    let Some(parts) = vector["parts"].as_array() else {
        return vector["text"].as_str().unwrap().into();
    };
    let part = |part: &Value| {
        let once = match (part["text"].as_str(), part["hex"].as_str()) {
            (Some(text), None) => text.as_bytes().to_vec(),
            (None, Some(hex)) => from_hex(hex),
            _ => panic!("neither text nor hex: {part}"),
        };
        let times = part["times"].as_u64().unwrap_or(1);
        once.repeat(times.try_into().unwrap())
    };
    parts.iter().flat_map(part).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(pair).collect()
}

fn moment(micros: &Value) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(micros.as_i64()?)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn hint(means: &Value) -> Hint {
    Hint {
        id: means["id"].as_str().unwrap().parse().unwrap(),
        instance: text(&means["i"]),
        job_type: text(&means["y"]),
        committed_at: moment(&means["c"]),
        trace_parent: text(&means["t"]),
    }
}

fn message(means: &Value) -> Message {
    let body = match means["hints"].as_array() {
        Some(hints) => Body::Hints(hints.iter().map(hint).collect()),
        None => Body::Marker(Marker {
            number: means["marker"]["n"].as_u64().unwrap(),
            node: means["marker"]["by"].as_str().unwrap().parse().unwrap(),
        }),
    };
    Message {
        published_at: moment(&means["at"]),
        body,
    }
}

fn assert_means(read: Message, means: &Value, name: &Value) {
    let Some(count) = means["count"].as_u64() else {
        return assert_eq!(read, message(means), "{name}");
    };
    let Body::Hints(hints) = read.body else {
        panic!("{name} is no hint");
    };
    assert_eq!(hints.len() as u64, count, "{name}");
    assert_eq!(hints.first(), Some(&hint(&means["first"])), "{name}");
    assert_eq!(hints.last(), Some(&hint(&means["last"])), "{name}");
}

#[test]
fn messages_mean_what_the_vectors_say() {
    let readable = messages().into_iter();
    let readable = readable.filter(|(vector, _)| !vector["means"].is_null());
    let mut count = 0;
    for (vector, bytes) in readable {
        let name = &vector["name"];
        let read = Message::decode(&bytes).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        assert_means(read, &vector["means"], name);
        count += 1;
    }
    assert!(count >= 29, "only {count} vectors are readable");
}

#[test]
fn messages_that_the_vectors_refuse_are_refused_for_their_reason() {
    let mut count = 0;
    for (vector, bytes) in messages() {
        let Some(reason) = vector["unreadable"].as_str() else {
            continue;
        };
        let refused = match Message::decode(&bytes) {
            Ok(read) => panic!("{} was read: {read:?}", vector["name"]),
            Err(UnreadableHint::TooLarge(_)) => "too_large",
            Err(UnreadableHint::Malformed(_)) => "malformed",
            Err(UnreadableHint::UnknownVersion(_)) => "unknown_version",
            Err(UnreadableHint::BadCount(_)) => "bad_count",
        };
        assert_eq!(refused, reason, "{}", vector["name"]);
        count += 1;
    }
    assert!(count >= 78, "only {count} vectors are unreadable");
}

#[test]
fn messages_are_written_as_the_vectors_say() {
    let vectors = section("encoded");
    assert!(vectors.len() >= 4);
    for vector in vectors {
        let written = String::from_utf8(message(&vector["means"]).encode()).unwrap();
        assert_eq!(written, vector["text"], "{}", vector["name"]);
    }
}

#[test]
fn the_vectors_name_the_limits_of_the_reader() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/hint-vectors.json"
    );
    let vectors: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(vectors["version"], WIRE_VERSION);
    assert_eq!(vectors["limits"]["message_bytes"], MAX_MESSAGE_BYTES);
    assert_eq!(vectors["limits"]["hints"], MAX_HINTS_PER_MESSAGE);
    let longest = crate::job::new_job::MAX_FIELD_BYTES;
    assert_eq!(vectors["limits"]["instance_bytes"], longest);
}
