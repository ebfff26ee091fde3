//! The end of a librdkafka client: it says goodbye to the brokers, and waits for its threads.
//!
//! That may take seconds, and has been known to hang. So it happens on a thread of its own, which
//! neither the runtime nor the process waits for.

use tokio::sync::oneshot;

/// Drop it elsewhere; the future ends when that is done.
pub(crate) fn end<T: Send + 'static>(client: T) -> impl Future<Output = ()> + Send {
    let (done, ended) = oneshot::channel();
    let ending = std::thread::Builder::new()
        .name("jobwire-kafka-end".to_owned())
        .spawn(move || {
            drop(client);
            let _ = done.send(());
        });
    if let Err(error) = ending {
        tracing::warn!(%error, "a Kafka client had to be ended in place");
    }
    async move {
        let _ = ended.await;
    }
}
