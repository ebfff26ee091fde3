//! Calls of an engine's REST interface.

/// The method of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Delete,
    Get,
    Post,
    Put,
}

/// A call of the engine's REST interface.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Below the engine's URL.
    pub(crate) path: String,
    /// JSON, or nothing.
    pub(crate) body: String,
}
