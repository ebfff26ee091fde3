//! Packs hints into messages within the size limit of readers.

use crate::hint::{Hint, MAX_MESSAGE_BYTES, Message};

/// Encodes hints in order, with at most `most` hints in a message.
#[must_use]
pub fn pack(hints: Vec<Hint>, most: usize) -> Vec<Vec<u8>> {
    let mut messages = Vec::with_capacity(hints.len().div_ceil(most.max(1)));
    let mut rest = hints.into_iter().peekable();
    while rest.peek().is_some() {
        let some: Vec<Hint> = rest.by_ref().take(most.max(1)).collect();
        encode(some, &mut messages);
    }
    messages
}

fn encode(mut hints: Vec<Hint>, messages: &mut Vec<Vec<u8>>) {
    let bytes = Message::hints(hints.clone()).encode();
    if bytes.len() <= MAX_MESSAGE_BYTES {
        messages.push(bytes);
    } else if hints.len() > 1 {
        let second = hints.split_off(hints.len() / 2);
        encode(hints, messages);
        encode(second, messages);
    } else if let Some(hint) = hints.pop() {
        // The trace context is too long. The id is enough to find the job.
        let bare = Hint {
            committed_at: hint.committed_at,
            ..Hint::new(hint.id)
        };
        messages.push(Message::hints(vec![bare]).encode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Body;
    use crate::job::JobId;

    fn unpack(messages: &[Vec<u8>]) -> Vec<Hint> {
        let bodies = messages.iter().map(|m| Message::decode(m).unwrap().body);
        bodies
            .flat_map(|body| match body {
                Body::Hints(hints) => hints,
                Body::Marker(_) => Vec::new(),
            })
            .collect()
    }

    #[test]
    fn hints_are_packed_in_order() {
        let hints: Vec<Hint> = (0..33).map(|_| Hint::new(JobId::generate())).collect();
        let messages = pack(hints.clone(), 16);
        assert_eq!(messages.len(), 3);
        assert_eq!(unpack(&messages), hints);
        assert!(pack(Vec::new(), 16).is_empty());
    }

    #[test]
    fn no_message_is_too_large_to_be_read() {
        let long = |bytes: usize| Hint {
            trace_parent: Some("x".repeat(bytes)),
            ..Hint::new(JobId::generate())
        };
        let hints: Vec<Hint> = (0..16).map(|_| long(10_000)).collect();
        assert_eq!(unpack(&pack(hints.clone(), 16)), hints);
        let absurd = long(MAX_MESSAGE_BYTES);
        assert_eq!(
            unpack(&pack(vec![absurd.clone()], 16)),
            [Hint::new(absurd.id)]
        );
    }
}
