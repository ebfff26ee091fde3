//! The fate of a job and of its execution.

/// The fate of a job, as its rows show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    /// The engine has executed it, or deleted it otherwise.
    Done,
    /// The engine has counted a failure; the job waits for its next attempt.
    Retry,
    /// The job has no attempt left.
    DeadLetter,
    /// The instance of the job is suspended.
    Suspended,
    /// The engine has rolled back without a trace. The lock is released, and the job is ready.
    Released,
    /// The engine may still run it, or has rolled it back many times. The lock stays until it expires.
    Unknown,
    /// Another owner has the lock.
    Lost,
    /// A transaction of the engine has locked a row of the job, so the row was not changed.
    Busy,
}

impl Fate {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Retry => "retry",
            Self::DeadLetter => "dead-letter",
            Self::Suspended => "suspended",
            Self::Released => "released",
            Self::Unknown => "unknown",
            Self::Lost => "lost-lock",
            Self::Busy => "busy",
        }
    }
}

/// The end of an execution that the engine did not answer with success, as the rows show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The rows are unchanged: two transactions were in conflict.
    Conflict,
    /// The engine has counted a failure.
    Counted,
    /// The job is suspended.
    Suspended,
    /// There is no such job.
    Gone,
}
