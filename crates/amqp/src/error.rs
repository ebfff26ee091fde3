//! Converts errors of lapin and the broker to errors with a remedy.
//!
//! The broker closes a channel on every refusal (403, 404, 405, 406), so each operation that can be
//! refused runs on a channel that nothing else uses. [`Operation`] names what was attempted,
//! because older brokers do not name the missing right.

use jobwire_core::transport::{BadSetting, BrokerSecurity, HostPort, TransportError};
use lapin::ErrorKind;

use crate::endpoint::Endpoint;
use crate::options::QueueType;
use crate::tls;

/// The attempted operation, for the remedy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation<'a> {
    /// Declaring a queue or exchange, or checking that it exists.
    Declare(&'a str),
    /// Binding a queue to an exchange.
    Bind(&'a str, &'a str),
    /// Consuming from a queue.
    Consume(&'a str),
    /// Publishing through an exchange.
    Publish(&'a str),
    /// An operation that needs no right.
    Talk,
}

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const COMMAND_INVALID: u16 = 503;
const NOT_ALLOWED: u16 = 530;

/// Returns the broker's code and text, if the error comes from the broker.
pub(crate) fn answer(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(e) => Some((e.get_id(), e.get_message().to_string())),
        _ => None,
    }
}

/// Returns whether the queue or exchange does not exist.
pub(crate) fn is_missing(error: &lapin::Error) -> bool {
    answer(error).is_some_and(|(code, _)| code == NOT_FOUND)
}

/// Converts the error of an attempt to connect to one of the hosts.
pub(crate) fn connecting(
    error: &lapin::Error,
    endpoint: &Endpoint,
    at: &HostPort,
    security: &BrokerSecurity,
) -> TransportError {
    let place = endpoint.at(at);
    if let Some((code, said)) = answer(error) {
        let remedy = match code {
            ACCESS_REFUSED | COMMAND_INVALID if endpoint.is_external() => {
                "enable the broker's plugin rabbitmq_auth_mechanism_ssl, list EXTERNAL in its \
                 `auth_mechanisms`, and add a user with the certificate's name (its distinguished \
                 or common name, by `ssl_cert_login_from`); or give user and password in the \
                 broker's URL"
                    .to_owned()
            }
            ACCESS_REFUSED => format!(
                "check the user name and the password in the broker's URL (user {})",
                endpoint.user()
            ),
            NOT_ALLOWED => format!(
                "check that the virtual host '{}' exists and that user {} may use it \
                 (rabbitmqctl set_permissions)",
                endpoint.vhost(),
                endpoint.user()
            ),
            _ => return TransportError::Unreachable(format!("{place}: {said}")),
        };
        return TransportError::Refused {
            problem: format!("{place}: {said}"),
            remedy,
        };
    }
    if let ErrorKind::IOError(io) = error.kind()
        && let Some(explained) = tls::explain(io, &place, security)
    {
        return explained;
    }
    // A broker refuses a client certificate after the handshake, and the end of the connection may
    // arrive before the reason.
    if endpoint.is_tls() && hung_up(error) {
        return TransportError::Unreachable(format!(
            "{place}: the broker hung up after the TLS handshake ({error}): it is stopping, or it \
             refuses the client certificate (`security.certificate`, setting \
             `broker_tls_certificate`); see the broker's log"
        ));
    }
    TransportError::Unreachable(format!("{place}: {error}"))
}

fn hung_up(error: &lapin::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        ErrorKind::IOError(io) => matches!(
            io.kind(),
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
        ),
        ErrorKind::InvalidConnectionState(_) => true,
        _ => false,
    }
}

/// Combines the errors of all hosts of a cluster. The result needs an operator if one of them does.
pub(crate) fn together(failures: Vec<TransportError>) -> TransportError {
    let said: Vec<String> = failures
        .iter()
        .map(|failure| match failure {
            TransportError::Unreachable(said) => said.clone(),
            TransportError::Refused { problem, .. } => problem.clone(),
            TransportError::Setting(bad) => bad.problem.clone(),
            other => other.to_string(),
        })
        .collect();
    let problem = said.join("; ");
    match failures.into_iter().find(|failure| !failure.is_transient()) {
        Some(TransportError::Refused { remedy, .. }) => TransportError::Refused { problem, remedy },
        Some(TransportError::Setting(bad)) => {
            TransportError::Setting(BadSetting { problem, ..bad })
        }
        _ => TransportError::Unreachable(problem),
    }
}

/// Converts the error of an operation on an open connection.
pub(crate) fn operating(
    error: &lapin::Error,
    operation: Operation<'_>,
    endpoint: &Endpoint,
    queue_type: QueueType,
) -> TransportError {
    let Some((code, said)) = answer(error) else {
        return TransportError::Unreachable(error.to_string());
    };
    let remedy = match (code, operation) {
        (ACCESS_REFUSED, operation) => missing_right(operation, endpoint),
        // A classic queue is unavailable while its node is down.
        (NOT_FOUND, _) if said.contains("home node") => {
            return TransportError::Unreachable(format!(
                "{said}; hints flow again when that node is back (a quorum queue would stay \
                 available)"
            ));
        }
        (NOT_FOUND, Operation::Declare(name)) => format!(
            "declare '{name}' (durable; a lane is a {queue_type} queue, the control exchange a \
             fanout), or let Jobwire declare it"
        ),
        (NOT_FOUND, _) => return TransportError::Unreachable(said),
        (RESOURCE_LOCKED, _) => {
            "another connection has exclusive use of this name; use another prefix".to_owned()
        }
        (PRECONDITION_FAILED, Operation::Declare(name)) => differing(&said, name, queue_type),
        _ => return TransportError::Unreachable(said),
    };
    TransportError::Refused {
        problem: said,
        remedy,
    }
}

fn missing_right(operation: Operation<'_>, endpoint: &Endpoint) -> String {
    let (user, vhost) = (endpoint.user(), endpoint.vhost());
    let rights = match operation {
        Operation::Declare(name) => format!(
            "the 'configure' right on '{name}' (or declare it yourself and set \
             `AmqpOptions::declare`, setting `amqp_declare`, to false)"
        ),
        Operation::Bind(queue, exchange) => {
            format!("the 'write' right on '{queue}' and the 'read' right on '{exchange}'")
        }
        Operation::Consume(queue) => format!("the 'read' right on '{queue}'"),
        Operation::Publish("") => "the 'write' right on 'amq.default'".to_owned(),
        Operation::Publish(exchange) => format!("the 'write' right on '{exchange}'"),
        Operation::Talk => "the rights that docs/operating/security.md lists".to_owned(),
    };
    format!("give user {user} in virtual host '{vhost}' {rights}: rabbitmqctl set_permissions")
}

/// Returns whether the broker refused a declaration because of this argument. The broker names the
/// first argument that differs.
pub(crate) fn differs_in(error: &lapin::Error, argument: &str) -> bool {
    answer(error).is_some_and(|(code, said)| {
        code == PRECONDITION_FAILED && argument_of(&said) == Some(argument)
    })
}

/// Returns the argument named in `PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue
/// '…': received … but current is …`.
fn argument_of(said: &str) -> Option<&str> {
    let (_, named) = said.split_once("inequivalent arg '")?;
    named.split_once('\'').map(|(argument, _)| argument)
}

/// Returns the remedy for a queue or exchange that was declared with other arguments.
fn differing(said: &str, name: &str, queue_type: QueueType) -> String {
    let other = match queue_type {
        QueueType::Classic => QueueType::Quorum,
        QueueType::Quorum => QueueType::Classic,
    };
    match argument_of(said) {
        Some("x-queue-type") => format!(
            "'{name}' exists with another 'x-queue-type': set the queue type to {other}, or delete \
             the queue (the sweeper publishes its hints again), or use another prefix"
        ),
        Some(argument) => format!(
            "'{name}' exists with another '{argument}': delete it (the sweeper publishes its hints \
             again), or set `amqp_declare` to false, or use another prefix"
        ),
        None => format!("delete '{name}', or set `amqp_declare` to false, or use another prefix"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::protocol::AMQPError;

    fn said(code: u16, words: &str) -> lapin::Error {
        let error = AMQPError::from_id(code, words.into()).expect("a known code");
        ErrorKind::ProtocolError(error).into()
    }

    fn operating_on(code: u16, words: &str, operation: Operation<'_>) -> TransportError {
        let endpoint = Endpoint::parse("amqp://bob:hunter2@host", &BrokerSecurity::default());
        let endpoint = endpoint.unwrap();
        operating(&said(code, words), operation, &endpoint, QueueType::Classic)
    }

    #[test]
    fn another_declaration_names_queue_argument_and_remedy() {
        let error = operating_on(
            406,
            "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': \
             received 'classic' but current is 'quorum'",
            Operation::Declare("q"),
        )
        .to_string();
        for part in [
            "'q'",
            "x-queue-type",
            "set the queue type to quorum",
            "prefix",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_missing_right_is_named() {
        let refused = "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'bob'";
        for (operation, right) in [
            (Operation::Declare("q"), "'configure' right on 'q'"),
            (Operation::Consume("q"), "'read' right on 'q'"),
            (Operation::Publish(""), "'write' right on 'amq.default'"),
            (Operation::Bind("q", "x"), "'read' right on 'x'"),
        ] {
            let error = operating_on(403, refused, operation);
            assert!(!error.is_transient());
            assert!(error.to_string().contains(right), "{error}");
        }
    }

    #[test]
    fn what_passes_by_itself_is_transient() {
        let down = "NOT_FOUND - home node 'rabbit@b' of durable queue 'q' is down or inaccessible";
        assert!(operating_on(404, down, Operation::Declare("q")).is_transient());
        assert!(operating_on(320, "CONNECTION_FORCED", Operation::Talk).is_transient());
        assert!(
            !operating_on(404, "NOT_FOUND - no queue 'q'", Operation::Declare("q")).is_transient()
        );
    }

    #[test]
    fn a_broker_that_hangs_up_without_a_reason_may_dislike_the_certificate() {
        let security = BrokerSecurity::default();
        let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let gone = lapin::Error::from(gone);
        let said = |url: &str| {
            let endpoint = Endpoint::parse(url, &security).unwrap();
            let at = &endpoint.hosts()[0];
            connecting(&gone, &endpoint, at, &security)
        };
        let encrypted = said("amqps://bob:hunter2@host");
        assert!(encrypted.is_transient(), "it may only be stopping");
        assert!(encrypted.to_string().contains("broker_tls_certificate"));
        let plain = said("amqp://bob:hunter2@host").to_string();
        assert!(!plain.contains("certificate"), "{plain}");
    }

    #[test]
    fn of_several_hosts_all_are_named_and_what_needs_an_operator_counts() {
        let away = |host: &str| TransportError::Unreachable(format!("{host}: refused"));
        let both = together(vec![away("h1"), away("h2")]);
        assert!(both.is_transient());
        assert_eq!(
            both.to_string(),
            "the broker is unreachable: h1: refused; h2: refused"
        );
        let password = TransportError::Refused {
            problem: "h2: ACCESS_REFUSED".to_owned(),
            remedy: "check the password".to_owned(),
        };
        let refused = together(vec![away("h1"), password]);
        assert!(!refused.is_transient());
        for part in ["h1", "h2", "check the password"] {
            assert!(refused.to_string().contains(part), "{refused}");
        }
    }
}
