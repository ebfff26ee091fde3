//! Rule 5 of the contract: control messages reach every node, best effort.

use std::time::Duration;

use chrono::DateTime;
use jobwire_core::hint::{Hint, Ready};
use jobwire_core::job::{JobId, Lane, NodeId};
use jobwire_core::transport::Control;
use tokio::sync::broadcast;

use super::subject::{Subject, soon};

/// Returns the next message, without what a transport tells of its own connection.
async fn hear(listener: &mut broadcast::Receiver<Control>) -> Control {
    loop {
        let heard = soon("hearing", listener.recv()).await.unwrap();
        if heard != Control::Missed {
            return heard;
        }
    }
}

pub(crate) async fn every_listener_hears_what_is_told(subject: &Subject) {
    let (mut one, mut two) = (subject.transport.listen(), subject.transport.listen());
    let said = [
        Control::LeaderAlive {
            node: NodeId::generate(),
            term: 7,
            now: DateTime::from_timestamp_micros(1_763_695_885_123_456),
            age: Some(Duration::from_millis(1_500)),
            doubt: Some(Duration::from_secs(20)),
        },
        Control::Rescued {
            node: NodeId::generate(),
            jobs: vec![Ready {
                lane: Lane::default(),
                hint: Hint::new(JobId::generate()),
            }],
        },
        Control::TimerSet {
            due: DateTime::from_timestamp_micros(1_763_695_885_123_456).unwrap(),
        },
        Control::Look,
    ];
    for control in &said {
        subject.transport.publisher().tell(control.clone());
    }
    for control in said {
        assert_eq!(hear(&mut one).await, control);
        assert_eq!(hear(&mut two).await, control);
    }
}

pub(crate) async fn what_a_newer_node_says_does_no_harm(subject: &Subject) {
    let mut listener = subject.transport.listen();
    subject.transport.publisher().tell(Control::Unknown);
    subject.transport.publisher().tell(Control::Look);
    while soon("hearing", listener.recv()).await.unwrap() != Control::Look {}
}
