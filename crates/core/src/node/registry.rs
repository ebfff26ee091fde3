//! The registry: changes the jobs that a node takes while it runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::job::args::JobArgs;
use crate::job::scope::{Names, Scope};
use crate::producer::bulk::BULK_TYPE;
use crate::store::{MAX_NAMES, SUSPENSION_TYPE, StoreError};
use crate::worker::context::NodeContext;
use crate::worker::handler::{Handler, HandlerOptions, HandlerResult, IntoOutcome, Running};

/// Registers and unregisters types, deployments, categories and tenants of a running node. Cheap to
/// clone. Returned by [`Node::registry`](super::Node::registry).
///
/// A change takes effect with the next lock statement. Running jobs continue, also those of an
/// unregistered type. Other nodes read the change from the node's row in the table `node`, within
/// two seconds. Hints of jobs that this node no longer takes are forwarded to a node that takes
/// them.
///
/// ```no_run
/// # use jobwire_core::{Node, Running};
/// # async fn example(node: Node) -> Result<(), jobwire_core::StoreError> {
/// let registry = node.registry();
/// registry.register("send-fax", |job: Running<u64>| async move {
///     println!("fax {}", job.payload);
///     Ok(())
/// })?;
/// // Only jobs of these deployments, and jobs that name none:
/// registry.register_deployment("order-process:17")?;
/// registry.unregister_deployment("order-process:16");
/// assert_eq!(registry.types(), ["send-fax"]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Registry(pub(super) Arc<NodeContext>);

/// Selects one of the sets of a scope.
type Kind = fn(&mut Scope) -> &mut Names;

const DEPLOYMENTS: Kind = |scope| &mut scope.deployments;
const CATEGORIES: Kind = |scope| &mut scope.categories;
const TENANTS: Kind = |scope| &mut scope.tenants;

impl Registry {
    /// Runs jobs of this type from now on, with default options. Replaces an existing handler of
    /// the type.
    ///
    /// # Errors
    /// Fails if the node already has [`MAX_NAMES`] types.
    pub fn register<P, F, Fut, O>(
        &self,
        job_type: impl Into<String>,
        run: F,
    ) -> Result<(), StoreError>
    where
        F: Fn(Running<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        P: DeserializeOwned + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.register_with(job_type, HandlerOptions::default(), run)
    }

    /// Runs jobs of this type from now on, with these options. Replaces an existing handler of the
    /// type.
    ///
    /// # Errors
    /// The same as those of [`register`](Self::register), and if the store does not support the
    /// [limit](HandlerOptions::limit) of the options.
    pub fn register_with<P, F, Fut, O>(
        &self,
        job_type: impl Into<String>,
        options: HandlerOptions,
        run: F,
    ) -> Result<(), StoreError>
    where
        F: Fn(Running<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        P: DeserializeOwned + Send + 'static,
        O: IntoOutcome + 'static,
    {
        let job_type = job_type.into();
        has_room("types", self.0.served.all().iter(), &job_type)?;
        self.may_limit(&options)?;
        self.0.served.change_handlers(|handlers| {
            handlers.add_with(&*job_type, options, run);
            self.0.slots.forget_type(&job_type);
        });
        Ok(())
    }

    /// Runs [typed jobs](JobArgs) from now on, with default options. Replaces an existing handler
    /// of the type.
    ///
    /// # Errors
    /// The same as those of [`register`](Self::register).
    pub fn register_job<A, F, Fut, O>(&self, run: F) -> Result<(), StoreError>
    where
        A: JobArgs,
        F: Fn(Running<A>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.register(A::TYPE, run)
    }

    /// Runs jobs of this type from now on, with anything that implements [`Handler`].
    ///
    /// # Errors
    /// The same as those of [`register`](Self::register).
    pub fn register_handler(
        &self,
        job_type: impl Into<String>,
        options: HandlerOptions,
        handler: Arc<dyn Handler>,
    ) -> Result<(), StoreError> {
        let job_type = job_type.into();
        has_room("types", self.0.served.all().iter(), &job_type)?;
        self.may_limit(&options)?;
        self.0.served.change_handlers(|handlers| {
            handlers.register(&*job_type, options, handler);
            self.0.slots.forget_type(&job_type);
        });
        Ok(())
    }

    fn may_limit(&self, options: &HandlerOptions) -> Result<(), StoreError> {
        match &options.limit {
            Some(limit) => super::keeps_permits(&*self.0.store, limit),
            None => Ok(()),
        }
    }

    /// Locks no more jobs of this type. Returns false if it had no handler.
    pub fn unregister(&self, job_type: &str) -> bool {
        self.0
            .served
            .change_handlers(|handlers| handlers.remove(job_type))
    }

    /// Returns the types with a handler, sorted, without the built-in ones ([`SUSPENSION_TYPE`],
    /// [`BULK_TYPE`]).
    #[must_use]
    pub fn types(&self) -> Vec<String> {
        let all = self.0.served.all();
        let own = all
            .iter()
            .filter(|of| *of != SUSPENSION_TYPE && *of != BULK_TYPE);
        own.cloned().collect()
    }

    /// Takes jobs of this deployment. After the first registration, jobs of other deployments are
    /// no longer taken.
    ///
    /// # Errors
    /// Fails if the node already has [`MAX_NAMES`] deployments.
    pub fn register_deployment(&self, name: impl Into<String>) -> Result<(), StoreError> {
        self.add("deployments", DEPLOYMENTS, name.into())
    }

    /// Takes no more jobs of this deployment. Returns false if it was not registered. After the
    /// last one is removed, only jobs that name no deployment are taken;
    /// [`take_all_deployments`](Self::take_all_deployments) takes all again.
    pub fn unregister_deployment(&self, name: &str) -> bool {
        self.remove(DEPLOYMENTS, name)
    }

    /// Takes jobs of all deployments.
    pub fn take_all_deployments(&self) {
        self.0.served.change_scope(|scope| scope.deployments = None);
    }

    /// Returns the deployments whose jobs are taken, or `None` for all.
    #[must_use]
    pub fn deployments(&self) -> Option<BTreeSet<String>> {
        self.0.served.scope().deployments.clone()
    }

    /// Takes jobs of this category. After the first registration, jobs of other categories are no
    /// longer taken.
    ///
    /// # Errors
    /// Fails if the node already has [`MAX_NAMES`] categories.
    pub fn register_category(&self, name: impl Into<String>) -> Result<(), StoreError> {
        self.add("categories", CATEGORIES, name.into())
    }

    /// Takes no more jobs of this category. Returns false if it was not registered. After the last
    /// one is removed, only jobs that name no category are taken.
    pub fn unregister_category(&self, name: &str) -> bool {
        self.remove(CATEGORIES, name)
    }

    /// Takes jobs of all categories.
    pub fn take_all_categories(&self) {
        self.0.served.change_scope(|scope| scope.categories = None);
    }

    /// Returns the categories whose jobs are taken, or `None` for all.
    #[must_use]
    pub fn categories(&self) -> Option<BTreeSet<String>> {
        self.0.served.scope().categories.clone()
    }

    /// Takes jobs of this tenant. After the first registration, jobs of other tenants are no longer
    /// taken.
    ///
    /// # Errors
    /// Fails if the node already has [`MAX_NAMES`] tenants.
    pub fn register_tenant(&self, name: impl Into<String>) -> Result<(), StoreError> {
        self.add("tenants", TENANTS, name.into())
    }

    /// Takes no more jobs of this tenant. Returns false if it was not registered. After the last
    /// one is removed, only jobs that name no tenant are taken.
    pub fn unregister_tenant(&self, name: &str) -> bool {
        self.remove(TENANTS, name)
    }

    /// Takes jobs of all tenants.
    pub fn take_all_tenants(&self) {
        self.0.served.change_scope(|scope| scope.tenants = None);
    }

    /// Returns the tenants whose jobs are taken, or `None` for all.
    #[must_use]
    pub fn tenants(&self) -> Option<BTreeSet<String>> {
        self.0.served.scope().tenants.clone()
    }

    fn add(&self, what: &str, kind: Kind, name: String) -> Result<(), StoreError> {
        let mut scope = self.0.served.own_scope();
        has_room(what, kind(&mut scope).iter().flatten(), &name)?;
        self.0.served.change_scope(|scope| {
            kind(scope).get_or_insert_default().insert(name);
        });
        Ok(())
    }

    fn remove(&self, kind: Kind, name: &str) -> bool {
        let mut removed = false;
        self.0.served.change_scope(|scope| {
            removed = kind(scope).as_mut().is_some_and(|names| names.remove(name));
        });
        removed
    }
}

fn has_room<'a>(
    what: &str,
    names: impl Iterator<Item = &'a String>,
    name: &str,
) -> Result<(), StoreError> {
    let others = names.filter(|known| *known != name).count();
    if others < MAX_NAMES {
        return Ok(());
    }
    Err(StoreError::Config(format!(
        "a node takes at most {MAX_NAMES} {what}; unregister some or spread them over several \
         nodes"
    )))
}
