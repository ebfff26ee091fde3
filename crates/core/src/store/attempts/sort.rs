//! The order of a list of attempts.

use crate::job::text_enum;

text_enum! {
    /// The order of a list of attempts: that of their locks, which is the order of their fences. A
    /// handler starts right after its lock.
    AttemptSort {
        /// The latest first. The default of [`AttemptQuery`](super::AttemptQuery).
        Newest = "newest",
        /// The oldest first.
        Oldest = "oldest",
    }
}
