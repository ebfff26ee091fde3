//! Files of equal TOML tables: rules for lanes, periodic jobs, business calendars.
//!
//! All mistakes of a file are reported together, and nothing is changed before.

use std::io::Read;
use std::path::Path;

use crate::error::Error;

/// The tables of a kind of file.
pub(crate) struct Tables {
    /// The name of the tables, as in `[[rule]]`.
    pub(crate) key: &'static str,
    /// The noun for one of them.
    pub(crate) noun: &'static str,
    /// The noun for all of them.
    pub(crate) nouns: &'static str,
    /// Maximum size of the file.
    pub(crate) most_bytes: u64,
    /// Required fields of a table, each with an example of its value.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    /// Whether commands read the file to change the database by it.
    pub(crate) changes: bool,
}

impl Tables {
    /// Reads a file, or standard input for `-`.
    ///
    /// # Errors
    /// The file can't be read or is too long, or all the mistakes that `parse` found.
    pub(crate) fn read<T>(
        &self,
        file: &Path,
        parse: impl Fn(&str) -> Result<Vec<T>, Vec<String>>,
    ) -> Result<Vec<T>, Error> {
        let (name, most) = (file.display(), self.most_bytes);
        let mut text = String::new();
        let read = if file == Path::new("-") {
            std::io::stdin().lock().take(most).read_to_string(&mut text)
        } else {
            std::fs::File::open(file).and_then(|f| f.take(most).read_to_string(&mut text))
        };
        let read = read.map_err(|source| Error::File {
            name: name.to_string(),
            source,
        })?;
        if read as u64 >= most {
            return Err(Error::Input(format!(
                "{name} is longer than {most} bytes; give a file of {}",
                self.nouns
            )));
        }
        parse(&text).map_err(|mistakes| {
            let head = match self.changes {
                true => format!("{name}: nothing was changed"),
                false => format!("the {} in {name} have mistakes:", self.nouns),
            };
            Error::Input(format!("{head}\n  {}", mistakes.join("\n  ")))
        })
    }

    /// Returns the tables of a text, `None` without any, and adds the mistakes around them.
    ///
    /// # Errors
    /// The text is not TOML.
    pub(crate) fn entries(
        &self,
        text: &str,
        mistakes: &mut Vec<String>,
    ) -> Result<Option<Vec<toml::Value>>, Vec<String>> {
        let Self { key, noun, .. } = self;
        let mut table: toml::Table = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            vec![format!(
                "line {line}: this is not TOML: {}",
                error.message()
            )]
        })?;
        let entries = table.remove(*key);
        let unknown = table.keys();
        mistakes.extend(
            unknown.map(|other| format!("`{other}` is unknown; write `[[{key}]]` tables only")),
        );
        Ok(match entries {
            Some(toml::Value::Array(entries)) => Some(entries),
            Some(_) => {
                mistakes.push(format!(
                    "`{key}` is no list; write each {noun} as a `[[{key}]]` table"
                ));
                Some(Vec::new())
            }
            None => None,
        })
    }

    /// Returns a mistake with the number of its table, which is at place `at`.
    pub(crate) fn mistake(&self, at: usize, mistake: &str) -> String {
        let said = format!("{} {}: {mistake}", self.noun, at + 1);
        let missing = mistake.strip_prefix("missing field `");
        let missing = missing.and_then(|rest| rest.strip_suffix('`'));
        match self
            .examples
            .iter()
            .find(|(field, _)| Some(*field) == missing)
        {
            Some((field, value)) => format!("{said}; add it, for example `{field} = {value}`"),
            None => said,
        }
    }
}
