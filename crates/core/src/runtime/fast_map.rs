//! A hash map for the lookups that every job makes.

use std::collections::HashMap;

/// A hash map with a quicker hash than that of the standard library. The hash has a seed of the
/// process, so names and ids from outside can't be chosen to collide.
pub(crate) type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
