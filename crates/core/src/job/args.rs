//! Typed jobs: a payload type that names its job type.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A payload that belongs to one job type.
///
/// ```
/// use jobwire_core::{Handlers, JobArgs, NewJob, Running};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendInvoice { order: u64 }
///
/// impl JobArgs for SendInvoice {
///     const TYPE: &'static str = "send-invoice";
/// }
///
/// let job = NewJob::new(&SendInvoice { order: 17 }).instance("order-17");
///
/// let mut handlers = Handlers::default();
/// handlers.job(|job: Running<SendInvoice>| async move {
///     println!("invoice for order {}", job.payload.order);
///     Ok(())
/// });
/// assert_eq!(handlers.types(), ["send-invoice"]);
/// assert!(job.validate().is_ok());
/// ```
pub trait JobArgs: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The job type, which names the handler in the database and in metrics.
    const TYPE: &'static str;
}
