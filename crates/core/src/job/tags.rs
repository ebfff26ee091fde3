//! Tags: free labels of jobs.
//!
//! They are a part of the custom values, under the key `$tags`. So they move with the job through
//! every table and to its next occurrences, every writer can set them, and a job without tags costs
//! nothing more. Only lists read them.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::job::Job;
use crate::job::invalid_job::InvalidJob;

/// The key of the tags in the custom values.
const TAGS: &str = "$tags";
/// The maximum number of tags of a job.
pub const MAX_TAGS: usize = 32;
/// The maximum size of a tag, in bytes.
pub const MAX_TAG_BYTES: usize = 128;

/// Returns the tags in custom values. Values of another form have none.
pub(crate) fn of(values: Option<&str>) -> Vec<String> {
    #[derive(Deserialize)]
    struct Tagged {
        #[serde(rename = "$tags", default)]
        tags: Vec<String>,
    }
    let Some(values) = values.filter(|values| values.contains(TAGS)) else {
        return Vec::new();
    };
    serde_json::from_str::<Tagged>(values).map_or_else(|_| Vec::new(), |tagged| tagged.tags)
}

impl Job {
    /// Returns the [tags](crate::NewJob::tag) of the job.
    #[must_use]
    pub fn tags(&self) -> Vec<String> {
        of(self.custom_values.as_deref().map(RawValue::get))
    }
}

/// Adds a tag to the custom values that a query asks for. Values of another form stay: the query is
/// refused.
pub(crate) fn wanted(values: Option<Value>, tag: String) -> Value {
    let mut values = values.unwrap_or_else(|| Value::Object(Map::new()));
    if let Value::Object(fields) = &mut values {
        let tags = fields
            .entry(TAGS)
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(tags) = tags {
            tags.push(Value::String(tag));
        }
    }
    values
}

/// Returns the JSON text of the tags in custom values, whatever its form.
pub(crate) fn text_of(values: &str) -> Option<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Tagged {
        #[serde(rename = "$tags")]
        tags: Option<Box<RawValue>>,
    }
    let values = Some(values).filter(|values| values.contains(TAGS))?;
    serde_json::from_str::<Tagged>(values).ok()?.tags
}

/// Adds tags to custom values. Each tag is there once.
///
/// # Errors
/// [`InvalidJob`]: a tag is empty, too long or has a NUL byte, there are too many, or the custom
/// values are no object or have tags already.
pub(crate) fn add(
    values: Option<&RawValue>,
    tags: &[String],
) -> Result<Option<Box<RawValue>>, InvalidJob> {
    let wrong = |problem: String, remedy| Err(InvalidJob::new("tags", problem, remedy));
    let mut own: Vec<&str> = Vec::new();
    for tag in tags {
        if tag.is_empty() || tag.len() > MAX_TAG_BYTES || tag.contains('\0') {
            let shown: String = tag.escape_debug().take(40).collect();
            let problem = format!("has the tag `{shown}` of {} bytes", tag.len());
            return wrong(problem, "give each 1 to 128 bytes, without NUL");
        }
        if !own.contains(&&**tag) {
            own.push(tag);
        }
    }
    if own.len() > MAX_TAGS {
        return wrong(format!("has {} tags", own.len()), "give at most 32");
    }
    let list = serde_json::to_string(&own).unwrap_or_default();
    let begin = match values.map(|values| values.get().trim()) {
        None => "{".to_owned(),
        Some(values) => {
            let inner = values
                .strip_prefix('{')
                .and_then(|values| values.strip_suffix('}'));
            let Some(inner) = inner else {
                return wrong(
                    "is set beside custom values that are no object".to_owned(),
                    "make the custom values an object, or leave the tags out",
                );
            };
            if text_of(values).is_some() {
                return wrong(
                    "is set twice, also as `$tags` of the custom values".to_owned(),
                    "leave one of them out",
                );
            }
            // The end, because the first key tells whether the values are encrypted.
            let comma = if inner.trim().is_empty() { "" } else { "," };
            format!("{{{inner}{comma}")
        }
    };
    let text = format!("{begin}\"{TAGS}\":{list}}}");
    RawValue::from_string(text).map(Some).or_else(|error| {
        wrong(
            format!("can't be added to the custom values: {error}"),
            "give custom values that are JSON",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(values: Option<&str>, tags: &[&str]) -> Result<String, String> {
        let values = values.map(|text| RawValue::from_string(text.to_owned()).expect("JSON"));
        let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let text = add(values.as_deref(), &tags).map_err(|error| error.to_string())?;
        Ok(text.map(|text| text.get().to_owned()).unwrap_or_default())
    }

    #[test]
    fn tags_are_added_to_the_custom_values_and_read_again() {
        assert_eq!(added(None, &["a"]).unwrap(), r#"{"$tags":["a"]}"#);
        assert_eq!(added(Some("{ }"), &["a"]).unwrap(), r#"{ "$tags":["a"]}"#);
        let text = added(Some(r#"{"n":1.50}"#), &["a", "x y", "a", "\"q\""]).unwrap();
        assert_eq!(text, r#"{"n":1.50,"$tags":["a","x y","\"q\""]}"#);
        assert_eq!(of(Some(&text)), ["a", "x y", "\"q\""]);
        assert_eq!(text_of(&text).unwrap().get(), r#"["a","x y","\"q\""]"#);
    }

    #[test]
    fn custom_values_of_another_form_have_no_tags() {
        assert!(of(None).is_empty());
        for text in [
            r#"{"$tags":"a"}"#,
            r#"{"$tags":[1]}"#,
            r#"["$tags"]"#,
            "{}",
            "1",
        ] {
            assert!(of(Some(text)).is_empty(), "{text}");
        }
    }

    #[test]
    fn tags_that_can_not_be_are_refused_with_the_remedy() {
        let long = "x".repeat(MAX_TAG_BYTES + 1);
        let many: Vec<String> = (0..=MAX_TAGS).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (values, tags, said) in [
            (None, &[""][..], "of 0 bytes"),
            (None, &[&*long], "of 129 bytes"),
            (None, &["a\0"], "of 2 bytes"),
            (None, &many, "has 33 tags; give at most 32"),
            (Some("[1]"), &["a"], "no object"),
            (Some(r#"{"$tags":[]}"#), &["a"], "set twice"),
        ] {
            let problem = added(values, tags).unwrap_err();
            assert!(
                problem.contains("field `tags`") && problem.contains(said),
                "{problem}"
            );
        }
    }
}
