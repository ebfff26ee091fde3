//! Tests with damaged messages: each is read or refused, and a message that was read reads the same
//! after it is written again.

use chrono::DateTime;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

use super::vectors::messages;
use super::*;

/// Pieces of JSON, and bytes that break it.
const PIECES: [&[u8]; 24] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\"",
    b"\\",
    b"null",
    b"-",
    b"1e999",
    b"0",
    b"\"v\":1,",
    b"\"v\":2,",
    b"\"id\":",
    b"\"i\":\"\\u0000\"",
    b"\"marker\":",
    b"\"hints\":",
    b"\xff",
    b"\0",
    b"\xed\xa0\x80",
    b"\\ud800",
    b" ",
    b"[[[[[[[[",
];

fn mutate(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    let at = random.random_range(0..=bytes.len());
    let end = random.random_range(at..=bytes.len().min(at + 24));
    match random.random_range(0..6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let piece = PIECES[random.random_range(0..PIECES.len())];
            bytes.splice(at..at, piece.iter().copied());
        }
        3 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        4 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
        _ => bytes[at..end].reverse(),
    }
}

fn assert_reads_back(read: &Message, what: &str) {
    let again = Message::decode(&read.encode());
    assert_eq!(again.as_ref(), Ok(read), "{what}");
}

#[test]
fn a_damaged_message_is_read_or_refused_and_never_more() {
    let seed = 4;
    let mut random = SmallRng::seed_from_u64(seed);
    // Long messages would take most of the time and test nothing more.
    let messages: Vec<Vec<u8>> = messages()
        .into_iter()
        .filter(|(vector, bytes)| !vector["means"].is_null() && bytes.len() < 1_000)
        .map(|(_, bytes)| bytes)
        .collect();
    let mut read = 0;
    for round in 0..40_000 {
        let mut bytes = messages[random.random_range(0..messages.len())].clone();
        for _ in 0..random.random_range(1..=3) {
            mutate(&mut bytes, &mut random);
        }
        if let Ok(message) = Message::decode(&bytes) {
            read += 1;
            let damaged = String::from_utf8_lossy(&bytes);
            assert_reads_back(&message, &format!("seed {seed}, round {round}: {damaged}"));
        }
    }
    assert!(
        read > 1_000,
        "only {read} of them were read: too much damage"
    );
}

fn any_text(random: &mut SmallRng) -> String {
    let letters = random.random_range(0..40);
    (0..letters)
        .filter_map(|_| match random.random_range(0..4) {
            0 => char::from_u32(random.random_range(1..0x80)),
            1 => char::from_u32(random.random_range(1..0x11_0000)),
            2 => ['"', '\\', '\u{2028}', '\u{7f}']
                .get(random.random_range(0..4))
                .copied(),
            _ => Some('x'),
        })
        .collect()
}

fn any_hint(random: &mut SmallRng) -> Hint {
    let moment = random.random_range(-62_000_000_000_000_000_i64..250_000_000_000_000_000);
    Hint {
        id: JobId(Uuid::from_u128(random.random())),
        instance: random.random::<bool>().then(|| any_text(random)),
        job_type: random.random::<bool>().then(|| any_text(random)),
        committed_at: DateTime::from_timestamp_micros(moment).filter(|_| random.random()),
        trace_parent: random.random::<bool>().then(|| any_text(random)),
    }
}

#[test]
fn whatever_is_written_reads_back_as_it_was() {
    let mut random = SmallRng::seed_from_u64(17);
    for round in 0..2_000 {
        let body = if random.random_range(0..10) == 0 {
            Body::Marker(Marker {
                number: random.random(),
                node: NodeId(Uuid::from_u128(random.random())),
            })
        } else {
            let hints = random.random_range(1..20);
            Body::Hints((0..hints).map(|_| any_hint(&mut random)).collect())
        };
        let published_at = DateTime::from_timestamp_micros(random.random_range(-1..i64::MAX / 64));
        let message = Message { published_at, body };
        assert_reads_back(&message, &format!("round {round}"));
    }
}

#[test]
fn an_instance_that_no_reader_takes_is_not_written() {
    for instance in ["x".repeat(1_025), "order\0-17".to_owned()] {
        let hint = Hint {
            instance: Some(instance),
            ..Hint::new(JobId::generate())
        };
        let bytes = Message::hints(vec![hint.clone()]).encode();
        let read = Message::decode(&bytes).unwrap();
        assert_eq!(read.body, Body::Hints(vec![Hint::new(hint.id)]));
    }
}
