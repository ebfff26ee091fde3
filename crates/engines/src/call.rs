//! Calls of an engine's REST interface.

/// The method of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Delete,
    Get,
    Post,
    Put,
}

/// The request that executes a job, without its path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    /// The query string with its question mark, or empty.
    pub(crate) query: &'static str,
    /// JSON, or empty.
    pub(crate) body: &'static str,
}

/// A call of the engine's REST interface.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// The path below the engine's URL.
    pub(crate) path: String,
    /// The body, JSON or empty.
    pub(crate) body: String,
}
