//! Conditions on the texts of a job.

use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::job::query::JobView;

/// A text of a job that a query can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TextField {
    /// The handler type.
    Type,
    /// The process instance.
    Instance,
    /// The execution.
    Execution,
    /// The process definition.
    Definition,
    /// The element.
    Element,
    /// The tenant.
    Tenant,
    /// The category.
    Category,
    /// The deployment.
    Deployment,
    /// The lane.
    Lane,
    /// The message of the last failure.
    ExceptionMessage,
}

impl TextField {
    /// Returns the column of the job tables.
    #[must_use]
    pub const fn column(self) -> &'static str {
        match self {
            Self::Type => "type",
            Self::Instance => "process_instance",
            Self::Execution => "execution",
            Self::Definition => "process_definition",
            Self::Element => "element",
            Self::Tenant => "tenant",
            Self::Category => "category",
            Self::Deployment => "deployment",
            Self::Lane => "lane",
            Self::ExceptionMessage => "exception_message",
        }
    }

    /// Returns the text of a job.
    #[must_use]
    pub fn of<'j>(self, view: &'j JobView, job: &'j Job) -> Option<&'j str> {
        match self {
            Self::Type => Some(&view.job_type),
            Self::Instance => view.process_instance.as_deref(),
            Self::Execution => view.execution.as_deref(),
            Self::Definition => view.process_definition.as_deref(),
            Self::Element => view.element.as_deref(),
            Self::Tenant => view.tenant.as_deref(),
            Self::Category => job.category.as_deref(),
            Self::Deployment => job.deployment.as_deref(),
            Self::Lane => Some(view.lane.as_str()),
            Self::ExceptionMessage => view.exception_message.as_deref(),
        }
    }
}

/// The condition on a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TextMatch {
    /// The text is one of these. An empty list matches nothing.
    OneOf(Vec<String>),
    /// The text is one of these, or missing.
    OneOfOrMissing(Vec<String>),
    /// The text matches a pattern: `%` stands for any characters, `_` for one. A backslash takes the
    /// meaning from the character behind it. Upper and lower case differ.
    Like(String),
    /// The text is this key, or begins with this key and a colon: `invoice` matches the definition
    /// `invoice:3:4711`.
    Key(String),
    /// The text is missing.
    Missing,
    /// The text is there.
    Present,
}

impl TextMatch {
    /// Returns the condition that a text is one of these.
    pub(crate) fn one_of<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::OneOf(texts.into_iter().map(Into::into).collect())
    }

    /// Returns whether a text fulfils the condition. A pattern that ends in a backslash matches
    /// nothing; [`JobQuery::check`](super::JobQuery::check) refuses it.
    #[must_use]
    pub fn matches(&self, text: Option<&str>) -> bool {
        let is_one = |of: &[String], text: &str| of.iter().any(|one| one == text);
        match (self, text) {
            (Self::OneOf(of) | Self::OneOfOrMissing(of), Some(text)) => is_one(of, text),
            (Self::Like(pattern), Some(text)) => {
                LikePattern::parse(pattern).is_some_and(|like| like.matches(text))
            }
            (Self::Key(key), Some(text)) => text
                .strip_prefix(&**key)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(':')),
            (Self::OneOfOrMissing(_) | Self::Missing, None) | (Self::Present, Some(_)) => true,
            _ => false,
        }
    }

    /// Returns the texts of the condition.
    pub(super) fn texts(&self) -> &[String] {
        match self {
            Self::OneOf(texts) | Self::OneOfOrMissing(texts) => texts,
            Self::Like(text) | Self::Key(text) => std::slice::from_ref(text),
            Self::Missing | Self::Present => &[],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Any,
    One,
    Exactly(char),
}

/// A pattern of SQL's `LIKE`.
#[derive(Clone, Debug)]
pub(crate) struct LikePattern(Vec<Part>);

impl LikePattern {
    /// Reads a pattern. Returns `None` if it ends in a backslash.
    pub(crate) fn parse(pattern: &str) -> Option<Self> {
        let mut parts = Vec::with_capacity(pattern.len());
        let mut chars = pattern.chars();
        while let Some(char) = chars.next() {
            parts.push(match char {
                '%' => Part::Any,
                '_' => Part::One,
                '\\' => Part::Exactly(chars.next()?),
                other => Part::Exactly(other),
            });
        }
        Some(Self(parts))
    }

    /// Returns the pattern of all texts that begin with this text.
    pub(crate) fn begins_with(text: &str) -> Self {
        let exact = text.chars().map(Part::Exactly);
        Self(exact.chain([Part::Any]).collect())
    }

    /// Returns the pattern for `LIKE … ESCAPE '\'`.
    pub(crate) fn like(&self) -> String {
        let mut like = String::new();
        for part in &self.0 {
            match part {
                Part::Any => like.push('%'),
                Part::One => like.push('_'),
                Part::Exactly(char) => {
                    if matches!(char, '%' | '_' | '\\') {
                        like.push('\\');
                    }
                    like.push(*char);
                }
            }
        }
        like
    }

    /// Returns the pattern for SQLite's `GLOB`, which tells upper from lower case.
    pub(crate) fn glob(&self) -> String {
        let mut glob = String::new();
        for part in &self.0 {
            match part {
                Part::Any => glob.push('*'),
                Part::One => glob.push('?'),
                Part::Exactly(char @ ('*' | '?' | '[')) => {
                    glob.extend(['[', *char, ']']);
                }
                Part::Exactly(char) => glob.push(*char),
            }
        }
        glob
    }

    /// Returns whether a text matches. Takes at most the product of both lengths.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        let (mut at, mut part) = (0, 0);
        // The last `%`, and the place in the text at which its rest is tried next.
        let mut retry: Option<(usize, usize)> = None;
        while at < text.len() {
            match self.0.get(part) {
                Some(Part::Any) => {
                    retry = Some((part, at));
                    part += 1;
                    continue;
                }
                Some(Part::One) => {
                    (at, part) = (at + 1, part + 1);
                    continue;
                }
                Some(Part::Exactly(char)) if *char == text[at] => {
                    (at, part) = (at + 1, part + 1);
                    continue;
                }
                _ => {}
            }
            let Some((any, from)) = retry else {
                return false;
            };
            retry = Some((any, from + 1));
            (at, part) = (from + 1, any + 1);
        }
        self.0[part..].iter().all(|part| *part == Part::Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_as_in_sql() {
        let like =
            |pattern: &str, text: &str| TextMatch::Like(pattern.to_owned()).matches(Some(text));
        for (pattern, text) in [
            ("", ""),
            ("%", ""),
            ("a%", "a"),
            ("a%c", "abc\nc"),
            ("%b%b%", "xbyb"),
            ("_é_", "aéß"),
            ("50\\%", "50%"),
            ("\\_\\\\", "_\\"),
            ("*[a]?", "*[a]?"),
        ] {
            assert!(like(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("A%", "a"),
            ("_", ""),
            ("%b%b%", "xb"),
            ("50\\%", "50x"),
            ("a", "ab"),
            ("a\\", "a"),
        ] {
            assert!(!like(pattern, text), "{pattern} {text}");
        }
        assert!(!TextMatch::Like("%".to_owned()).matches(None));
    }

    #[test]
    fn a_pattern_is_written_for_both_databases() {
        let pattern = LikePattern::parse("a%_\\%*?[]\\x").unwrap();
        assert_eq!(pattern.like(), "a%_\\%*?[]x");
        assert_eq!(pattern.glob(), "a*?%[*][?][[]]x");
        assert!(LikePattern::parse("a\\").is_none());
        assert_eq!(LikePattern::begins_with("a_").like(), "a\\_%");
    }

    #[test]
    fn a_key_ignores_the_version() {
        let key = TextMatch::Key("invoice".to_owned());
        for text in ["invoice", "invoice:3:4711", "invoice:"] {
            assert!(key.matches(Some(text)), "{text}");
        }
        for text in ["invoices:1", "Invoice:1", "invoic", ""] {
            assert!(!key.matches(Some(text)), "{text}");
        }
        assert!(!key.matches(None));
    }
}
