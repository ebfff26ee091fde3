//! What librdkafka and the brokers say, turned into what the caller can do about it.

use jobwire_core::transport::TransportError;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Goes away by itself, and says that the brokers are not to be reached.
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

/// The brokers do not let us in, or we do not trust them.
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

/// The topic is not there (any more).
pub(crate) fn is_missing_topic(code: Code) -> bool {
    matches!(
        code,
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition
    )
}

/// The error as the transport's caller sees it. `what` names the topic, group or operation.
pub(crate) fn explain(code: Code, what: &str) -> TransportError {
    let remedy = match code {
        Code::TopicAuthorizationFailed => {
            "allow this user Read, Write and Describe on the topic, and Create where Jobwire makes topics \
             (or make them yourself and set `kafka_declare = false`)"
        }
        Code::GroupAuthorizationFailed => "allow this user Read on the consumer group",
        Code::ClusterAuthorizationFailed => {
            "allow this user IdempotentWrite and Describe on the cluster"
        }
        Code::Authentication | Code::SaslAuthenticationFailed => {
            "check user and password in the broker's URL (or the token in `kafka_oauth_token_file`), and the \
             mechanism (?sasl=…)"
        }
        Code::UnsupportedSASLMechanism => {
            "name a mechanism that the brokers offer: ?sasl=SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER"
        }
        Code::SSL => {
            "check `broker_tls_ca`, `broker_tls_certificate` and `broker_tls_key`, and that the host is named \
             as its certificate does"
        }
        Code::PolicyViolation => {
            "the brokers' policy forbids this topic; make it yourself and set `kafka_declare = false`"
        }
        Code::InvalidReplicationFactor => {
            "there are fewer brokers than copies; lower `kafka_replication`"
        }
        Code::FencedInstanceId => {
            "another node uses the same `kafka_instance_id`; give each node its own"
        }
        Code::InvalidSessionTimeout => {
            "set `kafka_session_timeout` within the brokers' group.min.session.timeout.ms and \
             group.max.session.timeout.ms"
        }
        Code::InconsistentGroupProtocol => {
            "other members of this consumer group are not Jobwire; use another group (?group=…)"
        }
        Code::MessageSizeTooLarge => {
            "raise the topic's max.message.bytes, or lower `kafka_hints_per_message`"
        }
        Code::QueueFull => return TransportError::Full,
        _ => return TransportError::Unreachable(format!("{what}: {code}")),
    };
    TransportError::Refused {
        problem: format!("{what}: {code}"),
        remedy: remedy.to_owned(),
    }
}

/// The same for the wrapper's errors.
pub(crate) fn explain_error(error: &KafkaError, what: &str) -> TransportError {
    match error {
        KafkaError::ClientConfig(_, problem, property, _) => TransportError::Refused {
            problem: format!("librdkafka refuses its setting '{property}': {problem}"),
            remedy: "correct the setting, or build with what it needs (OpenSSL for TLS and SASL)"
                .to_owned(),
        },
        KafkaError::ClientCreation(problem) => TransportError::Refused {
            problem: format!("librdkafka: {problem}"),
            remedy: "correct the settings of the broker (certificates, key, mechanism)".to_owned(),
        },
        error => match error.rdkafka_error_code() {
            Some(code) => explain(code, what),
            None => TransportError::Unreachable(format!("{what}: {error}")),
        },
    }
}
