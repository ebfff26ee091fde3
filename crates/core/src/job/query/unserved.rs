//! Jobs that no living node takes: by type, and by the names that exclude them.

use std::fmt;

use serde::Serialize;

use crate::job::scope::{Needs, Services};

/// Maximum number of scopes that are named for a type.
const NAMED: usize = 5;

/// The number of executable jobs of a type that no living node takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnservedType {
    /// The type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The number of jobs.
    pub jobs: i64,
    /// The tenants, categories and deployments of these jobs that no living node of the type takes,
    /// those with most jobs first, at most five. Empty if no node serves the type at all, and for
    /// jobs that only their priority excludes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<UnservedScope>,
}

/// What excludes jobs from every living node that serves their type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnservedScope {
    /// The tenant that no node takes; `None` if the tenant is not the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The category that no node takes; `None` if the category is not the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The deployment that no node takes; `None` if the deployment is not the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// The number of jobs. Of a type with very many combinations of names those with most jobs are
    /// counted.
    pub jobs: i64,
}

impl UnservedType {
    /// Creates the answer of a store for one type.
    #[must_use]
    pub fn new(job_type: String, jobs: i64) -> Self {
        Self {
            job_type,
            jobs,
            scopes: Vec::new(),
        }
    }

    /// Adds jobs of the type that these services do not take, by their names.
    pub(crate) fn add(&mut self, needs: &Needs, jobs: i64, services: &Services) {
        let Some(mut scope) = UnservedScope::of(needs, services) else {
            return;
        };
        let same = self.scopes.iter_mut().find(|of| {
            (&of.tenant, &of.category, &of.deployment)
                == (&scope.tenant, &scope.category, &scope.deployment)
        });
        if let Some(same) = same {
            same.jobs += jobs;
        } else {
            scope.jobs = jobs;
            self.scopes.push(scope);
        }
    }

    /// Keeps the scopes with most jobs.
    pub(crate) fn shorten(&mut self) {
        // The sort is stable.
        self.scopes
            .sort_by_key(|scope| std::cmp::Reverse(scope.jobs));
        self.scopes.truncate(NAMED);
    }
}

impl UnservedScope {
    /// Returns the names that exclude such a job from all nodes of its type: each one that no node
    /// takes, or all of its names if some node takes each, but none takes all. `None` if no node
    /// serves the type, or if the names exclude nothing.
    fn of(needs: &Needs, services: &Services) -> Option<Self> {
        let is_refused = |alone: Needs| {
            !services.serve(&Needs {
                job_type: needs.job_type.clone(),
                ..alone
            })
        };
        if is_refused(Needs::default()) {
            return None;
        }
        let alone = |name: &Option<String>, of: fn(Option<String>) -> Needs| {
            name.clone().filter(|_| is_refused(of(name.clone())))
        };
        let mut scope = Self {
            tenant: alone(&needs.tenant, |tenant| Needs {
                tenant,
                ..Needs::default()
            }),
            category: alone(&needs.category, |category| Needs {
                category,
                ..Needs::default()
            }),
            deployment: alone(&needs.deployment, |deployment| Needs {
                deployment,
                ..Needs::default()
            }),
            jobs: 0,
        };
        if scope.names().next().is_none() {
            let names = Needs {
                priority: None,
                ..needs.clone()
            };
            if services.serve(&names) {
                return None;
            }
            scope.tenant = names.tenant;
            scope.category = names.category;
            scope.deployment = names.deployment;
        }
        Some(scope)
    }

    fn names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let names = [
            ("tenant", &self.tenant),
            ("category", &self.category),
            ("deployment", &self.deployment),
        ];
        names
            .into_iter()
            .filter_map(|(what, name)| Some((what, name.as_deref()?)))
    }
}

/// The names and the number of jobs, as `tenant acme and category mail (3)`. The names come from
/// rows: escape the text before you print it.
impl fmt::Display for UnservedScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (what, name)) in self.names().enumerate() {
            let and = if at == 0 { "" } else { " and " };
            write!(f, "{and}{what} {name}")?;
        }
        write!(f, " ({})", self.jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::scope::{Group, Scope};

    fn needs(tenant: &str, category: &str) -> Needs {
        let name = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        Needs {
            tenant: name(tenant),
            category: name(category),
            priority: Some(0),
            ..Needs::of("mail")
        }
    }

    fn named(scopes: Vec<Scope>, jobs: &[(Needs, i64)]) -> Vec<String> {
        let groups = scopes.into_iter().map(|scope| Group {
            types: vec!["mail".to_owned()],
            scope,
        });
        let services = Services::of(groups.collect());
        let mut found = UnservedType::new("mail".to_owned(), 0);
        for (needs, jobs) in jobs {
            found.add(needs, *jobs, &services);
        }
        found.shorten();
        found.scopes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_the_names_that_no_node_takes_are_reasons() {
        let acme = Scope::default().tenants(["acme"]).categories(["fax"]);
        let jobs = [
            (needs("acme", "mail"), 1),
            (needs("initech", "fax"), 2),
            (needs("", "mail"), 4),
            (needs("initech", "post"), 1),
        ];
        assert_eq!(
            named(vec![acme.clone()], &jobs),
            [
                "category mail (5)",
                "tenant initech (2)",
                "tenant initech and category post (1)"
            ]
        );
        // Each of the names has a node, and no node has both.
        let fax = Scope::default().tenants(["globex"]).categories(["mail"]);
        assert_eq!(
            named(vec![acme, fax], &[(needs("acme", "mail"), 3)]),
            ["tenant acme and category mail (3)"]
        );
    }

    #[test]
    fn neither_a_priority_nor_a_type_without_a_node_is_a_scope() {
        let urgent = Scope::default().min_priority(5);
        assert!(named(vec![urgent], &[(needs("acme", "fax"), 1)]).is_empty());
        assert!(named(Vec::new(), &[(needs("acme", "fax"), 1)]).is_empty());
    }

    #[test]
    fn the_scopes_with_most_jobs_are_named() {
        let none: [&str; 0] = [];
        let nothing = Scope::default().tenants(none);
        let jobs: Vec<(Needs, i64)> = (1..=9).map(|n| (needs(&format!("t{n}"), ""), n)).collect();
        let named = named(vec![nothing], &jobs);
        assert_eq!(named.len(), NAMED);
        assert_eq!(named[0], "tenant t9 (9)");
    }
}
