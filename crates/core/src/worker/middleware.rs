//! Middleware: code around handlers, for example for tracing, tenant context or metrics.
//!
//! ```
//! use std::time::Instant;
//! use jobwire_core::{Handlers, Next, Running};
//!
//! let mut handlers = Handlers::default();
//! handlers.add("send-invoice", |_: Running<u64>| async { Ok(()) });
//! handlers.layer(|job: Running, next: Next| async move {
//!     let (job_type, started) = (job.job.job_type.clone(), Instant::now());
//!     let answer = next.run(job).await;
//!     println!("{job_type}: {:?}, ok: {}", started.elapsed(), answer.is_ok());
//!     answer
//! });
//! ```
//!
//! A middleware receives the job before its payload is decoded. It may answer without running the
//! handler, or change the answer. The layer that was added last runs first, as with axum's
//! `Router::layer`.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use crate::worker::outcome::{HandlerResult, Outcome};
use crate::worker::running::{Handler, Running};

/// The handler behind a middleware, or the next middleware.
#[derive(Clone)]
pub struct Next(Arc<dyn Handler>);

impl Next {
    /// Runs the handler.
    ///
    /// # Errors
    /// The error of the handler.
    pub async fn run(self, job: Running) -> HandlerResult<Outcome> {
        self.0.run(job).await
    }
}

/// Code around a handler. Async closures over a job and [`Next`] implement it.
pub trait Middleware: Send + Sync + 'static {
    /// Runs the job, usually with [`Next::run`].
    fn run(&self, job: Running, next: Next) -> BoxFuture<'static, HandlerResult<Outcome>>;
}

impl<F, Fut> Middleware for F
where
    F: Fn(Running, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult<Outcome>> + Send + 'static,
{
    fn run(&self, job: Running, next: Next) -> BoxFuture<'static, HandlerResult<Outcome>> {
        Box::pin(self(job, next))
    }
}

/// A handler with a middleware around it.
pub(super) struct Layered {
    pub(super) middleware: Arc<dyn Middleware>,
    pub(super) inner: Arc<dyn Handler>,
}

#[async_trait]
impl Handler for Layered {
    async fn run(&self, job: Running) -> HandlerResult<Outcome> {
        self.middleware.run(job, Next(self.inner.clone())).await
    }
}
