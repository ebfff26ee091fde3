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
        let hint = &ready.hint;
        let texts = [&hint.instance, &hint.job_type, &hint.trace_parent];
        let texts = texts.into_iter().flatten().chain([&ready.lane.0]);
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
    fn long_texts_are_portioned_into_messages_that_can_be_read() {
        let long: fn() -> String = || "\u{1}".repeat(1_024);
        let job = || Ready {
            lane: Lane::default(),
            hint: Hint::new(JobId::generate()),
        };
        let of_instance = || {
            let mut job = job();
            job.hint.instance = Some(long());
            job
        };
        let of_type = || {
            let mut job = job();
            job.hint.job_type = Some(long());
            job
        };
        let of_lane = || Ready {
            lane: Lane(long()),
            ..job()
        };
        let jobs = (0..100).flat_map(|_| [of_instance(), of_type(), of_lane()]);
        let messages = portions(jobs.collect());
        assert_eq!(messages.iter().map(Vec::len).sum::<usize>(), 300);
        for jobs in messages {
            let node = NodeId::generate();
            let message = serde_json::to_vec(&Control::Rescued { node, jobs }).unwrap();
            assert!(message.len() <= MESSAGE_BYTES + 1_024, "{}", message.len());
        }
    }
}
