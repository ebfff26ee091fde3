//! The scope of a node: which jobs it takes beside their type.
//!
//! A node may take only the jobs of some deployments, categories or tenants, as the engines' deployment-aware executors
//! do. A job that names no deployment, category or tenant is for every node.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Names of one kind that a node takes; `None` for all.
pub type Names = Option<BTreeSet<String>>;

/// Which jobs a node takes beside their type. The default takes all.
///
/// ```
/// use jobwire_core::job::scope::{Needs, Scope};
///
/// let scope = Scope::default().tenants(["acme", "globex"]);
/// let of = |tenant: Option<&str>| Needs { tenant: tenant.map(str::to_owned), ..Needs::of("mail") };
/// assert!(scope.takes(&of(Some("acme"))) && scope.takes(&of(None)));
/// assert!(!scope.takes(&of(Some("initech"))));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Scope {
    /// Deployments; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployments: Names,
    /// Categories; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub categories: Names,
    /// Tenants; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Names,
}

/// What a node must serve to run a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Needs {
    /// The job's type.
    pub job_type: String,
    /// Its deployment, if it names one.
    pub deployment: Option<String>,
    /// Its category, if it names one.
    pub category: Option<String>,
    /// Its tenant, if it names one.
    pub tenant: Option<String>,
}

impl Needs {
    /// Of a job that names its type only.
    #[must_use]
    pub fn of(job_type: impl Into<String>) -> Self {
        Self {
            job_type: job_type.into(),
            ..Self::default()
        }
    }
}

impl Scope {
    /// Take jobs of these deployments only.
    #[must_use]
    pub fn deployments<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.deployments = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Take jobs of these categories only.
    #[must_use]
    pub fn categories<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.categories = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Take jobs of these tenants only.
    #[must_use]
    pub fn tenants<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.tenants = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Does a node of this scope take such a job, if it serves the type?
    #[must_use]
    pub fn takes(&self, needs: &Needs) -> bool {
        let takes = |names: &Names, name: &Option<String>| match (names, name) {
            (Some(names), Some(name)) => names.contains(name),
            _ => true,
        };
        takes(&self.deployments, &needs.deployment)
            && takes(&self.categories, &needs.category)
            && takes(&self.tenants, &needs.tenant)
    }

    /// Does it take every job?
    #[must_use]
    pub fn takes_all(&self) -> bool {
        *self == Self::default()
    }
}

/// The scope as statements want it: `None` where it takes all.
impl Scope {
    pub(crate) fn bound(&self) -> Option<serde_json::Value> {
        if self.takes_all() {
            return None;
        }
        serde_json::to_value(self).ok()
    }
}

/// What the living nodes of a fleet take, or a part of them. A job is served if its type is among `types` and, where
/// `groups` names any, one group takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// The types.
    pub types: Arc<[String]>,
    /// Nodes with the same types and scope are one group. Empty where each type has a node that takes all jobs of it.
    pub groups: Arc<[Group]>,
}

/// Nodes that take the same jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The types.
    pub types: Vec<String>,
    /// Of these, which jobs.
    #[serde(flatten)]
    pub scope: Scope,
}

impl Services {
    /// Of these groups.
    #[must_use]
    pub fn of(groups: Vec<Group>) -> Self {
        let types: BTreeSet<&String> = groups.iter().flat_map(|group| &group.types).collect();
        let types: Arc<[String]> = types.into_iter().cloned().collect();
        let whole = groups.iter().filter(|group| group.scope.takes_all());
        let whole: BTreeSet<&String> = whole.flat_map(|group| &group.types).collect();
        let groups = if types.iter().all(|name| whole.contains(name)) {
            Arc::default()
        } else {
            groups.into()
        };
        Self { types, groups }
    }

    /// Does a node serve such a job?
    #[must_use]
    pub fn serve(&self, needs: &Needs) -> bool {
        let takes =
            |group: &Group| group.types.contains(&needs.job_type) && group.scope.takes(needs);
        self.types.contains(&needs.job_type)
            && (self.groups.is_empty() || self.groups.iter().any(takes))
    }

    /// The groups as statements want them: `None` where types alone decide.
    pub(crate) fn bound(&self) -> Option<serde_json::Value> {
        if self.groups.is_empty() {
            return None;
        }
        serde_json::to_value(&*self.groups).ok()
    }
}

/// Nodes that take all jobs of these types.
impl From<Arc<[String]>> for Services {
    fn from(types: Arc<[String]>) -> Self {
        Self {
            types,
            groups: Arc::default(),
        }
    }
}

impl From<Vec<String>> for Services {
    fn from(types: Vec<String>) -> Self {
        Arc::<[String]>::from(types).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(types: &[&str], scope: Scope) -> Group {
        Group {
            types: types.iter().map(|name| (*name).to_owned()).collect(),
            scope,
        }
    }

    fn of_tenant(tenant: &str) -> Needs {
        Needs {
            tenant: Some(tenant.to_owned()),
            ..Needs::of("mail")
        }
    }

    #[test]
    fn types_alone_decide_where_each_has_a_node_that_takes_all() {
        let scoped = group(&["mail"], Scope::default().tenants(["acme"]));
        let services = Services::of(vec![
            scoped.clone(),
            group(&["mail", "fax"], Scope::default()),
        ]);
        assert!(services.groups.is_empty() && services.bound().is_none());
        assert_eq!(*services.types, ["fax", "mail"]);
        let services = Services::of(vec![scoped, group(&["fax"], Scope::default())]);
        assert!(services.serve(&of_tenant("acme")) && services.serve(&Needs::of("mail")));
        assert!(!services.serve(&of_tenant("initech")) && !services.serve(&Needs::of("print")));
    }

    #[test]
    fn a_scope_is_bound_as_json_and_only_where_it_leaves_jobs_out() {
        assert_eq!(Scope::default().bound(), None);
        let scope = Scope::default().deployments(["d1"]);
        assert_eq!(
            scope.bound(),
            Some(serde_json::json!({"deployments": ["d1"]}))
        );
        let none: [&str; 0] = [];
        assert!(!Scope::default().categories(none).takes_all());
    }
}
