//! The scope of a node: the deployments, categories, tenants and priorities whose jobs it takes.
//!
//! The scope limits the jobs of a node besides their type, like the engines' deployment-aware
//! executors and their ranges of priorities. A name that a job leaves empty excludes no node.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The names that a node takes; `None` for all.
pub type Names = Option<BTreeSet<String>>;

/// The deployments, categories, tenants and priorities whose jobs a node takes. The default takes
/// all.
///
/// ```
/// use jobwire_core::job::scope::{Needs, Scope};
///
/// let scope = Scope::default().tenants(["acme", "globex"]);
/// let of = |tenant: Option<&str>| Needs { tenant: tenant.map(str::to_owned), ..Needs::of("mail") };
/// assert!(scope.takes(&of(Some("acme"))) && scope.takes(&of(None)));
/// assert!(!scope.takes(&of(Some("initech"))));
///
/// let urgent = Scope::default().min_priority(100);
/// assert!(!urgent.takes(&Needs { priority: Some(99), ..Needs::of("mail") }));
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
    /// The lowest priority; `None` for no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_priority: Option<i64>,
    /// The highest priority; `None` for no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i64>,
}

/// The properties that a node must serve to run a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Needs {
    /// The job's type.
    pub job_type: String,
    /// The job's deployment, if it names one.
    pub deployment: Option<String>,
    /// The job's category, if it names one.
    pub category: Option<String>,
    /// The job's tenant, if it names one.
    pub tenant: Option<String>,
    /// The job's priority; `None` if it is not known, which excludes no node.
    pub priority: Option<i64>,
}

impl Needs {
    /// Creates the needs of a job that names only its type.
    #[must_use]
    pub fn of(job_type: impl Into<String>) -> Self {
        Self {
            job_type: job_type.into(),
            ..Self::default()
        }
    }
}

impl Scope {
    /// Limits the scope to these deployments.
    #[must_use]
    pub fn deployments<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.deployments = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Limits the scope to these categories.
    #[must_use]
    pub fn categories<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.categories = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Limits the scope to these tenants.
    #[must_use]
    pub fn tenants<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.tenants = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Limits the scope to jobs of this priority or a higher one.
    #[must_use]
    pub fn min_priority(mut self, priority: i64) -> Self {
        self.min_priority = Some(priority);
        self
    }

    /// Limits the scope to jobs of this priority or a lower one.
    #[must_use]
    pub fn max_priority(mut self, priority: i64) -> Self {
        self.max_priority = Some(priority);
        self
    }

    /// Returns whether the scope has bounds of priorities.
    #[must_use]
    pub fn limits_priorities(&self) -> bool {
        self.min_priority.is_some() || self.max_priority.is_some()
    }

    /// Returns whether a node of this scope takes such a job, if it serves the type.
    #[must_use]
    pub fn takes(&self, needs: &Needs) -> bool {
        let takes = |names: &Names, name: &Option<String>| match (names, name) {
            (Some(names), Some(name)) => names.contains(name),
            _ => true,
        };
        takes(&self.deployments, &needs.deployment)
            && takes(&self.categories, &needs.category)
            && takes(&self.tenants, &needs.tenant)
            && needs.priority.is_none_or(|priority| {
                self.min_priority.is_none_or(|min| priority >= min)
                    && self.max_priority.is_none_or(|max| priority <= max)
            })
    }

    /// Returns the scope of the jobs that both take. A field that one leaves open is the other's.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let both = |these: &Names, those: &Names| match (these, those) {
            (Some(these), Some(those)) => Some(these & those),
            (some, None) | (None, some) => some.clone(),
        };
        Self {
            deployments: both(&self.deployments, &other.deployments),
            categories: both(&self.categories, &other.categories),
            tenants: both(&self.tenants, &other.tenants),
            // `None` is less than every bound, and every upper bound is less than none.
            min_priority: self.min_priority.max(other.min_priority),
            max_priority: match (self.max_priority, other.max_priority) {
                (Some(mine), Some(theirs)) => Some(mine.min(theirs)),
                (mine, theirs) => mine.or(theirs),
            },
        }
    }

    /// Returns whether the scope takes every job.
    #[must_use]
    pub fn takes_all(&self) -> bool {
        *self == Self::default()
    }
}

/// The scope as a statement's parameter: `None` if it takes all.
impl Scope {
    pub(crate) fn bound(&self) -> Option<serde_json::Value> {
        if self.takes_all() {
            return None;
        }
        serde_json::to_value(self).ok()
    }
}

/// The jobs that the living nodes of a fleet, or a part of them, take. A job is served if its type
/// is among `types` and, unless `groups` is empty, a group takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// The types.
    pub types: Arc<[String]>,
    /// Groups of nodes with the same types and scope. Empty if each type has a node that takes all
    /// its jobs.
    pub groups: Arc<[Group]>,
}

/// Nodes that take the same jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The types.
    pub types: Vec<String>,
    /// The scope of the nodes.
    #[serde(flatten)]
    pub scope: Scope,
}

impl Services {
    /// Creates the services of these groups.
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

    /// Returns whether a node serves such a job.
    #[must_use]
    pub fn serve(&self, needs: &Needs) -> bool {
        let takes =
            |group: &Group| group.types.contains(&needs.job_type) && group.scope.takes(needs);
        self.types.contains(&needs.job_type)
            && (self.groups.is_empty() || self.groups.iter().any(takes))
    }

    /// Returns the groups as a statement's parameter: `None` if types alone decide.
    #[doc(hidden)]
    #[must_use]
    pub fn bound(&self) -> Option<serde_json::Value> {
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
    fn two_scopes_take_together_what_each_of_them_takes() {
        let own = Scope::default().tenants(["acme"]).deployments(["d1", "d2"]);
        let reach = Scope::default().deployments(["d2", "d3"]);
        let both = Scope::default().tenants(["acme"]).deployments(["d2"]);
        assert_eq!(own.and(&reach), both);
        assert_eq!(reach.and(&own), both);
        assert_eq!(own.and(&Scope::default()), own);
        let none: [&str; 0] = [];
        let apart = own.and(&Scope::default().deployments(["d3"]));
        assert_eq!(apart, Scope::default().tenants(["acme"]).deployments(none));
    }

    #[test]
    fn a_range_of_priorities_has_both_of_its_ends() {
        let range = Scope::default().min_priority(-5).max_priority(9);
        let of = |priority| Needs {
            priority,
            ..Needs::of("mail")
        };
        for (priority, takes) in [(-6, false), (-5, true), (0, true), (9, true), (10, false)] {
            assert_eq!(range.takes(&of(Some(priority))), takes, "{priority}");
        }
        assert!(range.takes(&of(None)), "the row decides");
        let open = Scope::default().min_priority(i64::MIN);
        assert!(open.takes(&of(Some(i64::MIN))) && open.limits_priorities());
        let both = range.and(&Scope::default().min_priority(0).max_priority(100));
        assert_eq!((both.min_priority, both.max_priority), (Some(0), Some(9)));
        assert_eq!(range.and(&Scope::default()), range);
        let json = serde_json::json!({"min_priority": -5, "max_priority": 9});
        assert_eq!(range.bound(), Some(json));
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
