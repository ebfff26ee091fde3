//! Catching up: what happens to the occurrences that fell due while no node could run them.

/// The policy of a repeating job for the occurrences that it missed, for example while all nodes were
/// down.
///
/// At most one occurrence of a series exists at a time. It waits until a node can run it. The
/// policy decides whether it still runs, and which occurrence follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CatchUp {
    /// The waiting occurrence runs late, once. The series continues with the next due date in the
    /// future. This is the default.
    #[default]
    Once,
    /// Every missed occurrence runs, one after the other.
    All,
    /// An occurrence does not run if the one after it is due as well. The series continues with the
    /// next due date in the future.
    Skip,
}

impl CatchUp {
    /// Returns the name in the text of an interval: `once`, `all` or `skip`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::All => "all",
            Self::Skip => "skip",
        }
    }

    /// Reads a name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        [Self::Once, Self::All, Self::Skip]
            .into_iter()
            .find(|policy| policy.as_str() == name)
    }
}
