//! Jobs for one node, divided to fit into control messages.

use crate::hint::Ready;

/// Maximum size of the jobs in one control message, in bytes. A job counts with `JOB_BYTES` for its
/// id and keys, and with its texts.
const MESSAGE_BYTES: usize = 16 * 1024;
const JOB_BYTES: usize = 160;

/// Divides jobs into portions that each fit into a control message.
pub(crate) fn portions(jobs: Vec<Ready>) -> Vec<Vec<Ready>> {
    let mut messages: Vec<Vec<Ready>> = Vec::new();
    let mut bytes = MESSAGE_BYTES;
    for ready in jobs {
        let texts = [&ready.hint.instance, &ready.hint.trace_parent];
        let texts = texts.iter().filter_map(|text| text.as_ref());
        // An escaped character takes six bytes.
        let its = JOB_BYTES + texts.map(|text| text.len() * 6).sum::<usize>();
        if bytes + its > MESSAGE_BYTES {
            messages.push(Vec::new());
            bytes = 0;
        }
        bytes += its;
        if let Some(last) = messages.last_mut() {
            last.push(ready);
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::Hint;
    use crate::job::{JobId, Lane, NodeId};
    use crate::transport::Control;

    #[test]
    fn long_instances_are_portioned_into_messages_that_can_be_read() {
        let long = |_| {
            let mut job = Ready {
                lane: Lane::default(),
                hint: Hint::new(JobId::generate()),
            };
            job.hint.instance = Some("\u{1}".repeat(1_024));
            job
        };
        let jobs: Vec<Ready> = (0..100).map(long).collect();
        let messages = portions(jobs);
        assert_eq!(messages.iter().map(Vec::len).sum::<usize>(), 100);
        for jobs in messages {
            let node = NodeId::generate();
            let message = serde_json::to_vec(&Control::Rescued { node, jobs }).unwrap();
            assert!(message.len() <= MESSAGE_BYTES + 1_024, "{}", message.len());
        }
    }
}
