//! An error of any kind, for programs that only report it.

use std::error::Error as StdError;
use std::fmt;

/// Any error, with its text. `Debug` writes the text and the causes, so that a `main` that returns
/// the error prints the problem and the remedy.
///
/// ```
/// use jobwire_core::Error;
///
/// fn read() -> Result<String, Error> {
///     Ok(std::fs::read_to_string("/no/such/file")?)
/// }
///
/// let error = read().unwrap_err();
/// assert_eq!(format!("{error:?}"), error.to_string());
/// ```
pub struct Error(Box<dyn StdError + Send + Sync>);

impl Error {
    /// Returns the error itself, for example to downcast it.
    #[must_use]
    pub fn into_inner(self) -> Box<dyn StdError + Send + Sync> {
        self.0
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Error {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text)?;
        let mut said = text;
        let mut cause = self.0.source();
        while let Some(next) = cause {
            let text = next.to_string();
            // Many errors have the text of their cause in their own.
            if !said.contains(&text) {
                write!(f, "\ncaused by: {text}")?;
                said = text;
            }
            cause = next.source();
        }
        Ok(())
    }
}
