//! The transport that a URL names.

use std::sync::Arc;

use jobwire_core::transport::{BadSetting, Transport, TransportError};
use jobwire_core::{InProcessTransport, PgStore, PgTransport};

/// Connects to the transport that a URL names, with its default options. So a deployment changes
/// the broker by its configuration, without a change of the program:
///
/// | URL | transport | feature |
/// | --- | --- | --- |
/// | `none` | [`PgTransport`]: PostgreSQL wakes the nodes | |
/// | `in-process:` | [`InProcessTransport`]: one node | |
/// | `amqp://`, `amqps://` | RabbitMQ, `amqp::AmqpTransport` | `amqp` |
/// | `kafka://` | Kafka, `kafka::KafkaTransport` | `kafka` |
///
/// ```no_run
/// # use jobwire::{HandlerResult, JobArgs, Running};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendInvoice { order: i64 }
/// # impl JobArgs for SendInvoice { const TYPE: &'static str = "send-invoice"; }
/// # async fn send_invoice(_job: Running<SendInvoice>) -> HandlerResult<()> { Ok(()) }
/// # async fn example() -> Result<(), jobwire::Error> {
/// use jobwire::{Node, PgStore, transport};
///
/// let store = PgStore::connect("postgres://user:password@host/database").await?;
/// let broker = std::env::var("BROKER_URL").unwrap_or_else(|_| "none".to_owned());
/// let transport = transport::connect(&broker, &store).await?;
/// let node = Node::builder(store, transport).job(send_invoice).start().await?;
/// # node.stop().await;
/// # Ok(()) }
/// ```
///
/// To set options, connect the transport itself.
///
/// # Errors
/// [`TransportError::Setting`] if the URL is wrong, or names a transport whose feature is off; the
/// broker's error if it refuses. A broker that is away is no error: the transport tries again.
pub async fn connect(url: &str, store: &PgStore) -> Result<Arc<dyn Transport>, TransportError> {
    let scheme = url.split(':').next().unwrap_or_default();
    match scheme {
        "none" => Ok(Arc::new(PgTransport::new(store))),
        "in-process" => Ok(Arc::new(InProcessTransport::new())),
        #[cfg(feature = "amqp")]
        "amqp" | "amqps" => {
            let options = jobwire_amqp::AmqpOptions::default();
            let transport = jobwire_amqp::AmqpTransport::connect(url, options).await?;
            Ok(Arc::new(transport))
        }
        #[cfg(feature = "kafka")]
        "kafka" => {
            let options = jobwire_kafka::KafkaOptions::default();
            let transport = jobwire_kafka::KafkaTransport::connect(url, options).await?;
            Ok(Arc::new(transport))
        }
        other => Err(refused(other)),
    }
}

fn refused(scheme: &str) -> TransportError {
    let feature = match scheme {
        "amqp" | "amqps" => Some("amqp"),
        "kafka" => Some("kafka"),
        _ => None,
    };
    let (problem, remedy) = match feature {
        Some(feature) => (
            format!("`{scheme}:` needs the feature `{feature}`, which is off"),
            format!(
                "add it to the features of `jobwire` in Cargo.toml: `features = [\"{feature}\"]`"
            ),
        ),
        None => (
            format!("there is no transport for `{}:`", scheme.escape_debug()),
            "use `none`, `in-process:`, `amqps://…` or `kafka://…`".to_owned(),
        ),
    };
    BadSetting {
        setting: "broker_url",
        problem,
        remedy,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::refused;

    #[test]
    fn a_url_without_a_transport_is_refused_with_the_remedy() {
        let told = refused("redis").to_string();
        assert!(told.contains("no transport for `redis:`"), "{told}");
        assert!(told.contains("`amqps://…`"), "{told}");
        let told = refused("kafka").to_string();
        assert!(told.contains("features = [\"kafka\"]"), "{told}");
    }
}
