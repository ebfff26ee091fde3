//! What lapin and the broker say, turned into what the caller can do about it.
//!
//! The broker closes a channel on every refusal (403, 404, 405, 406). Each operation that can be
//! refused therefore runs on a channel that nothing else depends on, and is told apart by
//! [`Operation`], because older brokers do not say which right was missing.

use jobwire_core::transport::{BadSetting, BrokerSecurity, TransportError};
use lapin::ErrorKind;

use crate::endpoint::{Address, Endpoint};
use crate::options::QueueType;
use crate::tls;

/// What was attempted, for the remedy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation<'a> {
    /// Declare a queue or exchange, or check that it exists.
    Declare(&'a str),
    /// Bind a queue to an exchange.
    Bind(&'a str, &'a str),
    /// Consume from a queue.
    Consume(&'a str),
    /// Publish through an exchange.
    Publish(&'a str),
    /// Anything that needs no right.
    Talk,
}

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const COMMAND_INVALID: u16 = 503;
const NOT_ALLOWED: u16 = 530;

/// The broker's own code and words, if it was the broker who objected.
pub(crate) fn answer(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(e) => Some((e.get_id(), e.get_message().to_string())),
        _ => None,
    }
}

/// There is no such queue or exchange.
pub(crate) fn is_missing(error: &lapin::Error) -> bool {
    answer(error).is_some_and(|(code, _)| code == NOT_FOUND)
}

/// Why there is no connection to one of the hosts.
pub(crate) fn connecting(
    error: &lapin::Error,
    endpoint: &Endpoint,
    at: &Address,
    security: &BrokerSecurity,
) -> TransportError {
    let place = endpoint.at(at);
    if let Some((code, said)) = answer(error) {
        let remedy = match code {
            ACCESS_REFUSED | COMMAND_INVALID if endpoint.is_external() => {
                "enable the broker's plugin rabbitmq_auth_mechanism_ssl, list EXTERNAL in its \
                 `auth_mechanisms`, and add a user of the certificate's name (by \
                 `ssl_cert_login_from`: its distinguished or its common name); or name user and \
                 password in --broker"
                    .to_owned()
            }
            ACCESS_REFUSED => format!(
                "check the user name and the password in --broker (user {})",
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
    // A broker refuses a client certificate after the handshake, and its reason may be overtaken by its end.
    if endpoint.is_tls() && hung_up(error) {
        return TransportError::Unreachable(format!(
            "{place}: the broker hung up after the TLS handshake ({error}); it does so while it stops, and \
             where it refuses the client certificate (broker_tls_certificate): its log says why"
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

/// What went wrong with each host of a cluster, as one: what needs an operator counts for more.
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

/// Why an operation on a connection failed.
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
        // A classic queue whose node is down: it comes back with its node.
        (NOT_FOUND, _) if said.contains("home node") => {
            return TransportError::Unreachable(format!(
                "{said}; a quorum queue would be available"
            ));
        }
        (NOT_FOUND, Operation::Declare(name)) => format!(
            "declare '{name}' (durable; a lane is a {queue_type} queue, the control exchange a \
             fanout), or let Jobwire declare it"
        ),
        (NOT_FOUND, _) => return TransportError::Unreachable(said),
        (RESOURCE_LOCKED, _) => {
            "somebody else uses this name exclusively; use another prefix".to_owned()
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
            "the 'configure' right on '{name}' (or declare it yourself and set `amqp_declare` to false)"
        ),
        Operation::Bind(queue, exchange) => {
            format!("the 'write' right on '{queue}' and the 'read' right on '{exchange}'")
        }
        Operation::Consume(queue) => format!("the 'read' right on '{queue}'"),
        Operation::Publish("") => "the 'write' right on 'amq.default'".to_owned(),
        Operation::Publish(exchange) => format!("the 'write' right on '{exchange}'"),
        Operation::Talk => "the rights listed in the documentation".to_owned(),
    };
    format!("give user {user} in virtual host '{vhost}' {rights}: rabbitmqctl set_permissions")
}

/// Whether the broker refused a declaration because of this argument, the first that differs.
pub(crate) fn differs_in(error: &lapin::Error, argument: &str) -> bool {
    answer(error).is_some_and(|(code, said)| {
        code == PRECONDITION_FAILED && argument_of(&said) == Some(argument)
    })
}

/// The argument in `PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '…': received … but
/// current is …`
fn argument_of(said: &str) -> Option<&str> {
    let (_, named) = said.split_once("inequivalent arg '")?;
    named.split_once('\'').map(|(argument, _)| argument)
}

/// What to do about a queue or exchange that was declared otherwise.
fn differing(said: &str, name: &str, queue_type: QueueType) -> String {
    let other = match queue_type {
        QueueType::Classic => QueueType::Quorum,
        QueueType::Quorum => QueueType::Classic,
    };
    match argument_of(said) {
        Some("x-queue-type") => format!(
            "'{name}' exists with another 'x-queue-type': set the queue type to {other}, or delete \
             the queue (hints that wait in it are sent again by the sweeper), or use another prefix"
        ),
        Some(argument) => format!(
            "'{name}' exists with another '{argument}': delete it (hints that wait in it are sent \
             again by the sweeper), or set `amqp_declare` to false, or use another prefix"
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
