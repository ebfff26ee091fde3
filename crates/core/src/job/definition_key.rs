//! The key of a process definition, with a tenant: what all versions of a definition have in common.
//!
//! Activiti, Flowable and Camunda 7 give each deployed version of a definition the id `key:version:id`, for
//! example `invoice:3:4711`. A key has no colon, because it is the XML name of the process. So the key of
//! a job is the text of its process definition before the first colon, or the whole text without one. SQL
//! computes it from the columns of a job by the same rule (`store/sql.rs`).
//!
//! The engines leave the key out of an id that would be longer than 64 characters. For such a
//! definition the creator of a job gives `key:version:id` all the same: the field holds 1,024 bytes.

use std::fmt;

use crate::job::new_job::MAX_FIELD_BYTES;

/// The versions of one process definition: those with this key, of this tenant or of none.
///
/// ```
/// use jobwire_core::job::definition_key::DefinitionKey;
///
/// let invoice = DefinitionKey::new("invoice")?.of_tenant("acme");
/// assert!(invoice.covers(Some("invoice:3:4711"), Some("acme")));
/// assert!(invoice.covers(Some("invoice:4:5120"), Some("acme")));
/// assert!(!invoice.covers(Some("invoice:4:5121"), None), "a tenant of its own");
/// assert!(!invoice.covers(Some("invoice-copy:1:6000"), Some("acme")));
/// assert!(DefinitionKey::new("invoice:3:4711").is_err(), "the id of one version");
/// # Ok::<(), jobwire_core::job::definition_key::InvalidDefinitionKey>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DefinitionKey {
    key: String,
    tenant: Option<String>,
}

/// The error for a text that is no key of a process definition, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field `definition_key` {problem}; {remedy}")]
pub struct InvalidDefinitionKey {
    problem: String,
    remedy: String,
}

impl DefinitionKey {
    /// Creates the key of the definitions without a tenant.
    ///
    /// # Errors
    /// The text is empty, has a colon or a NUL, or has more than 1,024 bytes.
    pub fn new(key: impl Into<String>) -> Result<Self, InvalidDefinitionKey> {
        let key = key.into();
        let bad = |problem: String, remedy: String| Err(InvalidDefinitionKey { problem, remedy });
        if let Some((before, _)) = key.split_once(':') {
            return bad(
                format!("is `{}`, the id of one version", key.escape_debug()),
                format!(
                    "give the key alone, which has no colon: `{}`",
                    before.escape_debug()
                ),
            );
        }
        let problem = if key.is_empty() || key.len() > MAX_FIELD_BYTES {
            format!("has {} bytes", key.len())
        } else if key.contains('\0') {
            "has a NUL".to_owned()
        } else {
            return Ok(Self { key, tenant: None });
        };
        let remedy = "give the key of a process definition, 1 to 1024 bytes without a NUL";
        bad(problem, remedy.to_owned())
    }

    /// Limits the definitions to those of this tenant. An empty name means none, as in Activiti and
    /// Flowable.
    #[must_use]
    pub fn of_tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into()).filter(|tenant| !tenant.is_empty());
        self
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the tenant, or `None` for the definitions without one.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Returns whether a job of this process definition and tenant belongs to the key.
    #[must_use]
    pub fn covers(&self, process_definition: Option<&str>, tenant: Option<&str>) -> bool {
        let key = process_definition.and_then(|definition| definition.split(':').next());
        key == Some(self.key.as_str())
            && tenant.filter(|tenant| !tenant.is_empty()) == self.tenant()
    }

    /// Returns both names as one text: `invoice:acme`, or `invoice` without a tenant. A key has no colon,
    /// so no other two names have the same text. SQL makes the same text of the columns of a job.
    #[must_use]
    pub fn value(&self) -> String {
        match &self.tenant {
            Some(tenant) => format!("{}:{tenant}", self.key),
            None => self.key.clone(),
        }
    }

    /// Reads the text of [`value`](Self::value), or returns `None` if it has another form.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (key, tenant) = match value.split_once(':') {
            Some((_, "")) => return None,
            Some((key, tenant)) => (key, Some(tenant.to_owned())),
            None => (value, None),
        };
        let key = Self::new(key).ok()?;
        Some(Self { tenant, ..key })
    }
}

impl fmt::Display for DefinitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tenant {
            Some(tenant) => write!(f, "{} of tenant {tenant}", self.key),
            None => write!(f, "{} without a tenant", self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_covers_its_versions_of_its_tenant_and_no_other_definition() {
        let of = |key: &str| DefinitionKey::new(key).expect("a key");
        let plain = of("invoice");
        let acme = of("invoice").of_tenant("acme");
        for (definition, tenant, is_plain, is_acme) in [
            (Some("invoice"), None, true, false),
            (Some("invoice:3:4711"), None, true, false),
            (Some("invoice:3:4711"), Some(""), true, false),
            (Some("invoice:3:4711"), Some("acme"), false, true),
            (Some("invoice:"), Some("acme"), false, true),
            (Some("invoice2:3:4711"), Some("acme"), false, false),
            (Some("Invoice:3:4711"), None, false, false),
            (Some(":invoice"), None, false, false),
            (None, None, false, false),
        ] {
            assert_eq!(plain.covers(definition, tenant), is_plain, "{definition:?}");
            assert_eq!(acme.covers(definition, tenant), is_acme, "{definition:?}");
        }
        assert_eq!(plain.to_string(), "invoice without a tenant");
        assert_eq!(acme.to_string(), "invoice of tenant acme");
        assert_eq!(of("invoice").of_tenant(""), plain);
    }

    #[test]
    fn no_two_keys_have_the_same_value() {
        let of =
            |key: &str, tenant: &str| DefinitionKey::new(key).expect("a key").of_tenant(tenant);
        let keys = [
            of("a", ""),
            of("a", "b"),
            of("a", "b:c"),
            of("ab", ""),
            of("ü", ":€"),
        ];
        for key in &keys {
            let value = key.value();
            assert_eq!(
                keys.iter().filter(|other| other.value() == value).count(),
                1
            );
            assert_eq!(DefinitionKey::parse(&value).as_ref(), Some(key));
        }
        for value in ["", ":acme", "invoice:"] {
            assert_eq!(DefinitionKey::parse(value), None, "{value}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_with_the_remedy() {
        for (key, said) in [
            (
                "invoice:3:4711",
                "give the key alone, which has no colon: `invoice`",
            ),
            ("", "has 0 bytes"),
            ("a\0b", "has a NUL"),
            (&*"x".repeat(1025), "has 1025 bytes"),
        ] {
            let error = DefinitionKey::new(key).expect_err(key).to_string();
            assert!(error.starts_with("field `definition_key` "), "{error}");
            assert!(error.contains(said), "{error}");
        }
    }
}
