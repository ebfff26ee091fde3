//! The keys of the setting `type_limits`: what its limits count alone, or let take turns.

use jobwire_core::Limit;

/// What jobs have in common that a limit counts together, or that take one turn together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitKey {
    /// The tenant.
    Tenant,
    /// The category.
    Category,
    /// A field of the custom values.
    CustomValue(String),
}

impl LimitKey {
    /// Reads `tenant`, `category` or `value:FIELD`. Returns `None` for another text.
    pub(super) fn read(text: &str) -> Option<Self> {
        match text {
            "tenant" => Some(Self::Tenant),
            "category" => Some(Self::Category),
            _ => text
                .strip_prefix("value:")
                .map(|field| Self::CustomValue(field.trim().to_owned())),
        }
    }

    /// Returns whether it is a field without a name.
    pub(super) fn is_nameless(&self) -> bool {
        matches!(self, Self::CustomValue(field) if field.is_empty())
    }

    pub(super) fn shown(&self) -> String {
        match self {
            Self::Tenant => "tenant".to_owned(),
            Self::Category => "category".to_owned(),
            Self::CustomValue(field) => format!("value:{field}"),
        }
    }

    /// Counts the jobs of each key alone.
    pub(super) fn count_alone(&self, limit: Limit) -> Limit {
        match self {
            Self::Tenant => limit.per_tenant(),
            Self::Category => limit.per_category(),
            Self::CustomValue(field) => limit.per_custom_value(field),
        }
    }

    /// Lets the keys take turns.
    pub(super) fn take_turns(&self, limit: Limit) -> Limit {
        match self {
            Self::Tenant => limit.fair_per_tenant(),
            Self::Category => limit.fair_per_category(),
            Self::CustomValue(field) => limit.fair_per_custom_value(field),
        }
    }
}
