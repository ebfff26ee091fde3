//! Conditions on texts and sets, of every query.

use super::{Statement, Value};
use crate::job::query::{LikePattern, TextMatch};

impl<Q> Statement<'_, Q> {
    /// Adds a condition on a text.
    pub(super) fn text(&mut self, column: &'static str, matches: &TextMatch) {
        self.sql(" AND (").sql(column);
        match matches {
            TextMatch::OneOf(texts) => self.one_of_texts(texts),
            TextMatch::OneOfOrMissing(texts) => {
                self.one_of_texts(texts);
                self.sql(" OR ").sql(column).sql(" IS NULL");
            }
            // A pattern that can't be read was refused before.
            TextMatch::Like(pattern) => match LikePattern::parse(pattern) {
                Some(pattern) => self.like(&pattern),
                None => {
                    self.sql(" IS NULL AND false");
                }
            },
            TextMatch::Key(key) => {
                self.sql(" = ").bind(Value::Text(key.clone()));
                self.sql(" OR ").sql(column);
                self.like(&LikePattern::begins_with(&format!("{key}:")));
            }
            TextMatch::Missing => {
                self.sql(" IS NULL");
            }
            TextMatch::Present => {
                self.sql(" IS NOT NULL");
            }
        }
        self.sql(")");
    }

    fn like(&mut self, pattern: &LikePattern) {
        let (before, behind) = self.dialect.like;
        let pattern = (self.dialect.pattern)(pattern);
        self.sql(before).bind(Value::Text(pattern)).sql(behind);
    }

    fn one_of_texts(&mut self, texts: &[String]) {
        match texts {
            [text] => {
                self.sql(" = ").bind(Value::Text(text.clone()));
            }
            texts => self.one_of(Value::Texts(texts.to_vec())),
        }
    }

    pub(super) fn one_of(&mut self, set: Value) {
        let (before, behind) = self.dialect.any_of;
        self.sql(before).bind(set).sql(behind);
    }
}
