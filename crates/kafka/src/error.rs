//! Converts errors of librdkafka and the brokers into [`TransportError`], with remedies.

use jobwire_core::transport::TransportError;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Returns whether the error is transient and means that the brokers are unreachable.
pub(crate) fn is_outage(code: Code) -> bool {
    matches!(
        code,
        Code::AllBrokersDown
            | Code::BrokerTransportFailure
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::NodeUpdate
    )
}

/// Returns whether the brokers refuse the client, or the client does not trust the brokers.
pub(crate) fn is_login(code: Code) -> bool {
    matches!(
        code,
        Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedSASLMechanism
            | Code::IllegalSASLState
            | Code::SSL
    )
}

/// Returns whether the topic does not exist.
pub(crate) fn is_missing_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition
    )
}

/// Returns the error for the transport's caller. `what` names the topic, group or operation.
pub(crate) fn explain(code: Code, what: &str) -> TransportError {
    let remedy = match code {
        Code::TopicAuthorizationFailed => {
            "allow this user Read, Write and Describe on the topic, and Create if Jobwire creates \
             topics (or create them yourself and set `KafkaOptions::declare`, setting \
             `kafka_declare`, to false)"
        }
        Code::GroupAuthorizationFailed => "allow this user Read on the consumer group",
        Code::ClusterAuthorizationFailed => {
            "allow this user IdempotentWrite and Describe on the cluster"
        }
        Code::Authentication | Code::SaslAuthenticationFailed => {
            "check user and password in the broker's URL (or the token of `KafkaOptions::tokens`, \
             setting `kafka_oauth_token_file`), and the mechanism (?sasl=…)"
        }
        Code::UnsupportedSASLMechanism => {
            "name a mechanism that the brokers offer: ?sasl=SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or \
             OAUTHBEARER"
        }
        Code::SSL => {
            "check the files of `KafkaOptions::security` (settings `broker_tls_ca`, \
             `broker_tls_certificate`, `broker_tls_key`), and that the URL's host is named in its \
             certificate"
        }
        Code::PolicyViolation => {
            "the brokers' policy forbids this topic; create it yourself and set \
             `KafkaOptions::declare`, setting `kafka_declare`, to false"
        }
        Code::InvalidReplicationFactor => {
            "lower `KafkaOptions::replication` (setting `kafka_replication`) to the number of \
             brokers"
        }
        Code::FencedInstanceId => {
            "another node uses the same `KafkaOptions::instance_id` (setting `kafka_instance_id`); \
             give each node its own"
        }
        Code::InvalidSessionTimeout => {
            "set `KafkaOptions::session_timeout` (setting `kafka_session_timeout`) within the \
             brokers' group.min.session.timeout.ms and group.max.session.timeout.ms"
        }
        Code::InconsistentGroupProtocol => {
            "clients other than Jobwire are in this consumer group; use another group (?group=…)"
        }
        Code::MessageSizeTooLarge => {
            "raise the topic's max.message.bytes, or lower `KafkaOptions::hints_per_message` \
             (setting `kafka_hints_per_message`)"
        }
        Code::QueueFull => return TransportError::Full,
        _ => return TransportError::Unreachable(format!("{what}: {code}")),
    };
    TransportError::Refused {
        problem: format!("{what}: {code}"),
        remedy: remedy.to_owned(),
    }
}

/// Does the same as [`explain`], for an error of the Rust wrapper.
pub(crate) fn explain_error(error: &KafkaError, what: &str) -> TransportError {
    match error {
        KafkaError::ClientConfig(_, problem, property, _) => TransportError::Refused {
            problem: format!("librdkafka does not accept '{property}': {problem}"),
            remedy: "correct the setting, or build with what it needs (OpenSSL for TLS and SASL)"
                .to_owned(),
        },
        KafkaError::ClientCreation(problem) => TransportError::Refused {
            problem: format!("librdkafka: {problem}"),
            remedy: "correct the broker's settings (certificates, key, mechanism)".to_owned(),
        },
        error => match error.rdkafka_error_code() {
            Some(code) => explain(code, what),
            None => TransportError::Unreachable(format!("{what}: {error}")),
        },
    }
}
