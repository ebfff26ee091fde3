//! The drop of a librdkafka client, which leaves its group and waits for its threads.
//!
//! The drop may take seconds. With brokers that keep the connection open and do not answer, it
//! takes until they answer or the connection breaks. So it runs on a separate thread, for which
//! neither the runtime nor the process waits. The last owner may be a task that was stopped, a task
//! that panicked, or code that holds a lock that the client's callbacks take.

use std::ops::Deref;

use tokio_util::sync::CancellationToken;

/// A client that is dropped on another thread.
pub(crate) struct Elsewhere<T: Send + 'static> {
    client: Option<T>,
    gone: CancellationToken,
}

impl<T: Send + 'static> Elsewhere<T> {
    pub(crate) fn new(client: T) -> Self {
        Self {
            client: Some(client),
            gone: CancellationToken::new(),
        }
    }

    /// Returns a token that is cancelled when the client has been dropped.
    pub(crate) fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }
}

impl<T: Send + 'static> Deref for Elsewhere<T> {
    type Target = T;

    #[allow(clippy::expect_used, reason = "only the drop takes it out")]
    fn deref(&self) -> &T {
        self.client.as_ref().expect("a client until it is dropped")
    }
}

impl<T: Send + 'static> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        let (client, gone) = (self.client.take(), self.gone.clone());
        let ending = std::thread::Builder::new()
            .name("jobwire-kafka-end".to_owned())
            .spawn(move || {
                drop(client);
                gone.cancel();
            });
        if let Err(error) = ending {
            // The closure was dropped, and the client with it.
            tracing::warn!(
                %error,
                "no thread could be started; a Kafka client was dropped on the calling thread"
            );
            self.gone.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    struct Slow(mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    #[tokio::test]
    async fn whoever_lets_go_of_a_client_does_not_wait_for_its_end() {
        let (end, slow) = mpsc::channel();
        let client = Elsewhere::new(Slow(slow));
        let gone = client.gone();
        drop(client);
        assert!(!gone.is_cancelled());
        end.send(()).unwrap();
        gone.cancelled().await;
    }
}
