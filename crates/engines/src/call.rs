//! Calls of an engine's REST interface, and of its endpoint.

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

/// Returns the path of an operation of the endpoint below its URL. The path names the version of the
/// contract.
pub(crate) fn operation_path(operation: &str) -> String {
    format!("/v1/{operation}")
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
