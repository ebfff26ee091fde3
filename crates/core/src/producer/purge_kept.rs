//! Settings that name an instance or a tenant. A purge reports them and leaves them: they are no traces of
//! jobs, and only their owner knows what shall be in their place.

use serde::Serialize;
use serde_json::Value;

use crate::store::purging::PurgeScope;
use crate::store::{Store, StoreError};

/// The settings that name an instance or a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeptSettings {
    /// The periodic jobs whose jobs belong to the scope, by name. They go on creating such jobs.
    pub schedules: Vec<String>,
    /// The positions, from 1, of the lane rules that name the tenant.
    pub lane_rules: Vec<usize>,
}

impl KeptSettings {
    /// Returns whether no setting names the scope.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.schedules.is_empty() && self.lane_rules.is_empty()
    }
}

/// Returns the settings that name this scope.
pub(super) async fn kept(
    scope: &PurgeScope,
    store: &dyn Store,
) -> Result<KeptSettings, StoreError> {
    let (field, tenant) = match scope {
        PurgeScope::ProcessInstance(_) => ("process_instance", None),
        PurgeScope::Tenant(tenant) => ("tenant", Some(tenant)),
    };
    // A template that this program can't read as a job may be readable as JSON.
    let names = |template: &str| {
        let template: Option<Value> = serde_json::from_str(template).ok();
        let named = template.as_ref().and_then(|template| template.get(field));
        named.and_then(Value::as_str) == Some(scope.value())
    };
    let mut schedules = store.periodic_jobs().await?;
    schedules.retain(|schedule| names(&schedule.template));
    let mut lane_rules = Vec::new();
    if tenant.is_some() {
        for (index, rule) in store.lane_rules().await?.iter().enumerate() {
            if rule.tenant.as_ref() == tenant {
                lane_rules.push(index + 1);
            }
        }
    }
    Ok(KeptSettings {
        schedules: schedules.into_iter().map(|of| of.name).collect(),
        lane_rules,
    })
}
