//! The outcomes by which attempts are listed.

use crate::job::text_enum;

text_enum! {
    /// The outcome of a recorded attempt, as [`AttemptView::outcome`](super::AttemptView::outcome)
    /// names it.
    AttemptOutcome {
        /// The job is done.
        Done = "done",
        /// The handler failed, and the job is tried again.
        Retry = "retry",
        /// The handler failed, and the job became a dead letter.
        DeadLetter = "dead-letter",
        /// The handler put the job off. No attempt was spent.
        Snooze = "snooze",
        /// Two transactions were in conflict. No attempt was spent.
        Conflict = "conflict",
        /// The handler panicked.
        Panic = "panic",
        /// The handler took too long.
        Timeout = "timeout",
        /// The job was cancelled, by an operator or by its handler.
        Cancelled = "cancelled",
        /// The node died while it held the job.
        NodeDied = "node-died",
        /// The node counted as dead, and lives.
        LostLock = "lost-lock",
    }
}
