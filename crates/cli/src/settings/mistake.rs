//! A mistake in a setting, with its source.

use std::fmt;
use std::path::PathBuf;

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The default.
    Default,
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The setting's key, or the unknown name.
    pub setting: String,
    /// The given value, without passwords.
    pub value: Option<String>,
    /// The source of the value.
    pub origin: Origin,
    /// The mistake and the remedy.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: setting `{}`", self.origin, self.setting)?;
        match &self.value {
            Some(value) if !value.is_empty() => write!(f, " is `{value}`: {}", self.problem),
            // Nothing was given: the problem says so, or is about the text.
            Some(_) if self.problem.starts_with("is ") => write!(f, " {}", self.problem),
            Some(_) => write!(f, " is empty: {}", self.problem),
            None => write!(f, ": {}", self.problem),
        }
    }
}

/// All mistakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => one.fmt(f),
            all => {
                write!(f, "{} settings are wrong:", all.len())?;
                all.iter().try_for_each(|one| write!(f, "\n  {one}"))
            }
        }
    }
}

impl std::error::Error for Mistakes {}

/// Returns the known name that was probably meant.
pub(crate) fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance * 3 <= candidate.chars().count().max(3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the number of letters that must change (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (to, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let above = *cell;
            let best = (diagonal + usize::from(from != *to))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            left = best;
            *cell = best;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_in_letters() {
        for (a, b, expected) in [
            ("", "", 0),
            ("lease", "lease", 0),
            ("leese", "lease", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn a_slip_finds_its_word_and_nonsense_finds_none() {
        let known = ["lease", "lanes", "sweep_interval"];
        assert_eq!(closest("leases", known), Some("lease"));
        assert_eq!(closest("sweep-interval", known), Some("sweep_interval"));
        assert_eq!(closest("colour", known), None);
    }
}
