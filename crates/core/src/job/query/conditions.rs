//! The setters of a query's conditions that have one value.

/// Writes a setter for each condition, which is an `Option` of the query.
macro_rules! conditions {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)+) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: $type) -> Self {
            self.$name = Some($name);
            self
        })+
    };
}

pub(crate) use conditions;
