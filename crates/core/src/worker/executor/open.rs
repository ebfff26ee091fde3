//! The opening of an attempt: the transaction in which the handler works, if its type has one, and
//! the signal that stops the attempt.

use futures_util::future::BoxFuture;

use super::fault::Fault;
use super::run::Run;
use crate::worker::handler::{Stop, StopSignal};
use crate::worker::handler_transaction::HandlerTransaction;

/// An attempt that is open, before the call of its handler.
pub(super) struct Opened {
    pub(super) transaction: HandlerTransaction,
    pub(super) stop: Stop,
    /// Completes when the connection of the transaction does not respond.
    pub(super) line_ends: BoxFuture<'static, ()>,
}

/// Opens an attempt. Returns a fault if the database opens no transaction.
pub(super) async fn open(run: &Run<'_>) -> Result<Opened, Fault> {
    if !run.registration.options.in_transaction {
        return Ok(Opened {
            transaction: HandlerTransaction::default(),
            stop: Stop(StopSignal::OfLease(run.lease.clone())),
            // A box of a zero-sized type allocates nothing.
            line_ends: Box::pin(std::future::pending()),
        });
    }
    let hook = run.node.hook.clone();
    let transaction = run.node.store.begin_completing(hook).await;
    let mut transaction = transaction.map_err(|error| Fault::before_handler(&error))?;
    transaction.completes(run.job.id);
    Ok(Opened {
        line_ends: transaction.line_ends(),
        // Another attempt may follow this one and must not be stopped with it.
        stop: Stop(StopSignal::OfAttempt(run.lease.stop.token().child_token())),
        transaction: HandlerTransaction::holding(transaction, run.node.options.encryption.clone()),
    })
}
