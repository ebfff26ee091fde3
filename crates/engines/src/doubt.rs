//! The doubt about lost locks: an answer that may contain locks is missing.

use std::sync::atomic::{AtomicBool, Ordering};

/// Records a doubt when it is dropped, unless the answer came.
pub(crate) struct Asked<'a>(pub(crate) &'a AtomicBool, pub(crate) bool);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}
