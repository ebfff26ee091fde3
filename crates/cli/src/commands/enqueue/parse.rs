//! Parses one line into one job.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use chrono::{DateTime, Utc};
use jobwire_core::job::duration;
use jobwire_core::store::SUSPENSION_TYPE;
use jobwire_core::{BULK_TYPE, BatchId, JobKind, NewJob, UniqueKey};
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::UnknownFields;
use crate::settings::closest;

/// Every field that a line may have, by its name in the job table; the most used come first.
pub const FIELDS: [&str; 28] = [
    "type",
    "payload",
    "process_instance",
    "exclusive",
    "due_at",
    "due_in",
    "retries",
    "retry_policy",
    "repeat",
    "repeat_until",
    "priority",
    "lane",
    "execution",
    "process_definition",
    "element",
    "tenant",
    "category",
    "deployment",
    "correlation_id",
    "custom_values",
    "tags",
    "trace_parent",
    "kind",
    "batch",
    "unique_key",
    "unique_period",
    "unique_dead_letters",
    "unique_global",
];

/// The fields of an object, each of which stands once.
#[derive(Debug, Default, Serialize)]
struct Fields(BTreeMap<String, Box<RawValue>>);

impl Deref for Fields {
    type Target = BTreeMap<String, Box<RawValue>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Fields {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OnceEach)
    }
}

/// Reads an object and refuses a second value of a field.
struct OnceEach;

impl<'de> Visitor<'de> for OnceEach {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some((name, value)) = object.next_entry::<String, Box<RawValue>>()? {
            if fields.contains_key(&name) {
                let name = cut(&name);
                return Err(A::Error::custom(format!("field `{name}` has two values")));
            }
            fields.insert(name, value);
        }
        Ok(fields)
    }
}

/// Parses a line. `unknown` is the treatment of fields that no job has, `None` for a command without
/// the options `--type` and `--unknown-fields`.
///
/// # Errors
/// Names the field, the mistake and the remedy.
pub(in crate::commands) fn job(
    line: &[u8],
    default_type: Option<&str>,
    unknown: Option<UnknownFields>,
) -> Result<NewJob, String> {
    let mut fields: Fields = serde_json::from_slice(line).map_err(|e| {
        format!(
            "this is not a JSON object ({e}); write, for example, {{\"type\": \"noop\", \
             \"payload\": {{}}}}"
        )
    })?;
    fields.retain(|_, value| value.get() != "null");
    let job_type = match (
        take::<String>(&mut fields, "type", "a string")?,
        default_type,
    ) {
        (Some(named), _) => named,
        (None, Some(default)) => default.to_owned(),
        (None, None) => return Err(no_type(&fields, unknown)),
    };
    let own = [SUSPENSION_TYPE, BULK_TYPE];
    if job_type.starts_with("jobwire.") && !own.contains(&job_type.as_str()) {
        return Err(format!(
            "field `type` is `{}`, and no handler has this name of Jobwire; choose a name that does \
             not begin with `jobwire.`",
            cut(&job_type)
        ));
    }
    let payload = fields.remove("payload");
    let mut known = Fields::default();
    for name in FIELDS {
        if let Some(value) = fields.remove(name) {
            known.insert(name.to_owned(), value);
        }
    }
    let payload = match (fields.is_empty(), unknown) {
        (true, _) => payload.unwrap_or_else(|| RawValue::NULL.to_owned()),
        (false, Some(UnknownFields::Payload)) => merge(payload, fields)?,
        (false, unknown) => return Err(no_such_field(&fields, unknown)),
    };
    let mut job = NewJob::with_json(job_type, payload);
    let fields = &mut known;

    macro_rules! set {
        ($($field:literal $type:ty, $form:literal => $method:ident;)+) => {
            $(if let Some(value) = take::<$type>(fields, $field, $form)? {
                job = job.$method(value);
            })+
        };
    }
    set! {
        "process_instance" String, "a string" => instance;
        "execution" String, "a string" => execution;
        "process_definition" String, "a string" => process_definition;
        "element" String, "a string" => element;
        "tenant" String, "a string" => tenant;
        "category" String, "a string" => category;
        "deployment" String, "a string" => deployment;
        "priority" i64, "a whole number of 64 bits" => priority;
        "retries" i32, "a whole number from 1 to 2147483647" => max_attempts;
        "retry_policy" String, "a string such as \"30s\" or \"R5/PT5M\"" => retry_policy_text;
        "due_at" DateTime<Utc>, "a date such as \"2026-01-31T08:00:00Z\"" => due;
        "due_in" String, "a string such as \"PT8H\" or \"PT8H[calendar=office]\"" => due_in_text;
        "repeat" String, "a string such as \"R3/PT10M\"" => repeat_text;
        "repeat_until" DateTime<Utc>, "a date such as \"2026-01-31T08:00:00Z\"" => repeat_until;
        "correlation_id" Uuid, "a UUID" => correlation_id;
        "lane" String, "a string" => lane;
        "trace_parent" String, "a string" => trace_parent;
        "tags" Vec<String>, "an array of strings" => tags;
        "batch" BatchId, "the id of an open batch, as `jobwire batches list` shows it" => batch;
    }
    job = match take::<bool>(fields, "exclusive", "true or false")? {
        Some(true) => job.exclusive(),
        Some(false) => job.concurrent(),
        None => job,
    };
    let only_history = "\"history\", or leave it out: the dates decide between the other kinds";
    job = match take::<JobKind>(fields, "kind", only_history)? {
        Some(JobKind::History) => job.history(),
        Some(other) => return Err(format!("field `kind` is \"{other}\"; give {only_history}")),
        None => job,
    };
    if let Some(values) = fields.remove("custom_values") {
        job = job.custom_values(values);
    }
    job = match unique_key(fields)? {
        Some(key) => job.unique(key),
        None => job,
    };
    job.validate().map_err(|e| e.to_string())?;
    Ok(job)
}

/// Takes the fields of a unique key.
fn unique_key(fields: &mut Fields) -> Result<Option<UniqueKey>, String> {
    let key = take::<String>(fields, "unique_key", "a string")?;
    let period = take::<String>(fields, "unique_period", "a duration such as \"1h\"")?;
    let flag = "true or false";
    let dead_letters = take::<bool>(fields, "unique_dead_letters", flag)?;
    let global = take::<bool>(fields, "unique_global", flag)?;
    let Some(key) = key else {
        return match (period, dead_letters, global) {
            (None, None, None) => Ok(None),
            _ => Err(
                "field `unique_key` is missing beside its options; add it, or leave them out"
                    .to_owned(),
            ),
        };
    };
    let mut key = UniqueKey::new(key);
    if let Some(period) = period {
        let period = duration::parse(&period);
        key = key.once_per(period.map_err(|e| format!("field `unique_period`: {e}"))?);
    }
    if dead_letters == Some(true) {
        key = key.and_dead_letters();
    }
    if global == Some(true) {
        key = key.global();
    }
    Ok(Some(key))
}

fn take<T: DeserializeOwned>(
    fields: &mut Fields,
    name: &str,
    form: &str,
) -> Result<Option<T>, String> {
    let Some(value) = fields.remove(name) else {
        return Ok(None);
    };
    serde_json::from_str(value.get())
        .map(Some)
        .map_err(|_| format!("field `{name}` is {}; give {form}", cut(value.get())))
}

/// Shortens a value for a message.
fn cut(text: &str) -> String {
    const SHOWN: usize = 60;
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    let mut shown: String = text.chars().take(SHOWN).collect();
    shown.push('…');
    shown
}

/// Returns the mistake of a line without a type, whose name may be misspelt.
fn no_type(fields: &Fields, unknown: Option<UnknownFields>) -> String {
    let mut others = fields
        .keys()
        .filter(|name| !FIELDS.contains(&name.as_str()));
    match others.find(|name| closest(name, FIELDS) == Some("type")) {
        Some(name) => format!(
            "field `{}` is no field of a job; did you mean `type`?",
            cut(name)
        ),
        None if unknown.is_some() => "field `type` is missing; add it, or pass --type".to_owned(),
        None => "field `type` is missing; add it".to_owned(),
    }
}

fn no_such_field(fields: &Fields, unknown: Option<UnknownFields>) -> String {
    let name = fields.keys().next().map_or("", String::as_str);
    let meant = closest(name, FIELDS)
        .map(|meant| format!("did you mean `{meant}`? Or "))
        .unwrap_or_default();
    let option = match unknown {
        Some(_) => ", or pass --unknown-fields payload",
        None => "",
    };
    let name = cut(name);
    format!("field `{name}` is no field of a job; {meant}put it into `payload`{option}")
}

/// Merges unknown fields into the payload; fields of the payload take precedence.
fn merge(payload: Option<Box<RawValue>>, unknown: Fields) -> Result<Box<RawValue>, String> {
    let mut merged = unknown;
    if let Some(payload) = payload {
        let own: Fields = serde_json::from_str(payload.get()).map_err(|e| {
            format!(
                "field `payload` is not an object ({e}), so unknown fields can't be put into it; \
                 correct it, or leave it out"
            )
        })?;
        for (name, value) in own.0 {
            if merged.contains_key(&name) {
                return Err(format!(
                    "field `{}` stands in the line and in `payload`; leave one of them out",
                    cut(&name)
                ));
            }
            merged.insert(name, value);
        }
    }
    serde_json::value::to_raw_value(&merged).map_err(|e| format!("field `payload`: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> String {
        job(line.as_bytes(), None, Some(UnknownFields::Error))
            .map(|job| format!("{job:?}"))
            .expect_err("refused")
    }

    #[test]
    fn a_field_has_one_value() {
        let twice = error(r#"{"type":"noop","due_at":"2030-01-01T00:00:00Z","due_at":null}"#);
        assert!(twice.contains("field `due_at` has two values"), "{twice}");
        let line = br#"{"type":"noop","foo":1,"payload":{"foo":2}}"#;
        let both = job(line, None, Some(UnknownFields::Payload)).expect_err("refused");
        assert!(both.contains("field `foo` stands in the line"), "{both}");
    }

    #[test]
    fn every_field_is_taken() {
        let line = r#"{"type":"t","payload":{"n":1.50},"process_instance":"p","execution":"e","process_definition":"d",
            "element":"l","tenant":"t","category":"c","deployment":"y","priority":-7,"exclusive":false,"retries":4,
            "retry_policy":"R5/PT5M","due_at":"2031-01-31T08:00:00+01:00","repeat":"R3/PT10M",
            "repeat_until":"2032-01-31T08:00:00Z","correlation_id":"0198c0de-0000-7000-8000-000000000001",
            "lane":"bulk","custom_values":{"a":1},"trace_parent":null}"#;
        let job = job(line.as_bytes(), None, Some(UnknownFields::Error)).expect("accepted");
        let shown = format!("{job:?}");
        // Numbers stay as they were written.
        for part in [
            "1.50",
            "-7",
            "Some(false)",
            "Some(4)",
            "2031-01-31T07:00:00Z",
            "bulk",
            "R3/PT10M",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
    }

    #[test]
    fn a_batch_is_an_id() {
        let line = r#"{"type":"t","batch":"0198c0de-0000-7000-8000-000000000001"}"#;
        let taken = job(line.as_bytes(), None, Some(UnknownFields::Error)).expect("accepted");
        let id = "batch: Some(BatchId(0198c0de-0000-7000-8000-000000000001))";
        assert!(format!("{taken:?}").contains(id), "{taken:?}");
        for wrong in [
            r#"{"type":"t","batch":"import"}"#,
            r#"{"type":"t","batch":17}"#,
        ] {
            let said = error(wrong);
            assert!(said.contains("field `batch` is"), "{said}");
            assert!(said.contains("jobwire batches list"), "{said}");
        }
        let repeats =
            r#"{"type":"t","batch":"0198c0de-0000-7000-8000-000000000001","repeat":"R3/PT10M"}"#;
        let said = error(repeats);
        assert!(said.contains("`batch`"), "{said}");
    }

    #[test]
    fn a_kind_is_history() {
        let line = |fields: &str| format!(r#"{{"type":"t","kind":"history"{fields}}}"#);
        let taken = |fields: &str| {
            let taken = job(line(fields).as_bytes(), None, Some(UnknownFields::Error));
            format!("{:?}", taken.expect("accepted"))
        };
        let plain = taken("");
        assert!(plain.contains("is_history: true"), "{plain}");
        assert!(plain.contains(r#"Some(Lane("history"))"#), "{plain}");
        let named = taken(r#","lane":"mine""#);
        assert!(named.contains(r#"Some(Lane("mine"))"#), "{named}");
        for (line, problem) in [
            (
                r#"{"type":"t","kind":"timer"}"#.to_owned(),
                "field `kind` is \"timer\"; give \"history\"",
            ),
            (
                r#"{"type":"t","kind":true}"#.to_owned(),
                "field `kind` is true; give \"history\"",
            ),
            (
                line(r#","repeat":"R3/PT10M""#),
                "`repeat` is set for a history job",
            ),
        ] {
            let said = error(&line);
            assert!(said.contains(problem), "{said}");
        }
    }

    #[test]
    fn a_unique_key_is_taken_with_its_options() {
        let line = r#"{"type":"t","unique_key":"k","unique_period":"1h","unique_dead_letters":true,"unique_global":true}"#;
        let taken = job(line.as_bytes(), None, Some(UnknownFields::Error)).expect("accepted");
        let key = UniqueKey::new("k").global().and_dead_letters();
        let key = key.once_per(std::time::Duration::from_secs(3_600));
        assert!(
            format!("{taken:?}").contains(&format!("{key:?}")),
            "{taken:?}"
        );
        for (line, problem) in [
            (
                r#"{"type":"t","unique_period":"1h"}"#,
                "`unique_key` is missing",
            ),
            (r#"{"type":"t","unique_key":""}"#, "`unique_key` is empty"),
            (
                r#"{"type":"t","unique_key":"k","unique_period":"soon"}"#,
                "`unique_period`",
            ),
            (
                r#"{"type":"t","unique_key":"k","repeat":"R3/PT10M"}"#,
                "`unique_key` is set for a job that repeats",
            ),
        ] {
            let said = error(line);
            assert!(said.contains(problem), "{said}");
        }
    }

    #[test]
    fn each_mistake_names_the_field_and_the_remedy() {
        for (line, field, remedy) in [
            ("nonsense", "JSON", "write, for example"),
            ("[1]", "JSON", "write, for example"),
            ("{}", "`type` is missing", "--type"),
            (
                r#"{"typ":"noop"}"#,
                "`typ` is no field",
                "did you mean `type`?",
            ),
            (r#"{"type":7}"#, "`type` is 7", "a string"),
            (r#"{"type":""}"#, "`type` is empty", "name the handler type"),
            (
                r#"{"type":"jobwire.foo"}"#,
                "`type` is `jobwire.foo`",
                "does not begin with `jobwire.`",
            ),
            (
                r#"{"type":"t","retries":0}"#,
                "`retries` is 0",
                "give 1 or more",
            ),
            (
                r#"{"type":"t","retries":99999999999}"#,
                "`retries` is 99999999999",
                "a whole number from 1 to 2147483647",
            ),
            (
                r#"{"type":"t","retries":"many"}"#,
                "`retries` is \"many\"",
                "a whole number",
            ),
            (
                r#"{"type":"t","due_at":"tomorrow"}"#,
                "`due_at`",
                "a date such as",
            ),
            (
                r#"{"type":"t","due":1}"#,
                "`due` is no field",
                "--unknown-fields payload",
            ),
            (
                r#"{"type":"t","priorty":1}"#,
                "`priorty`",
                "did you mean `priority`?",
            ),
            (
                r#"{"type":"t","exclusive":true}"#,
                "`exclusive`",
                "process_instance",
            ),
            (r#"{"type":"t","lane":"a b"}"#, "`lane`", "letters"),
            (
                r#"{"type":"t","payload":"\u0000"}"#,
                "`payload`",
                "leave it out",
            ),
        ] {
            let error = error(line);
            assert!(
                error.contains(field) && error.contains(remedy),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn a_command_without_the_options_of_enqueue_does_not_name_them() {
        let said = |line: &str| job(line.as_bytes(), None, None).expect_err("refused");
        assert_eq!(said("{}"), "field `type` is missing; add it");
        assert_eq!(
            said(r#"{"type":"t","due":1}"#),
            "field `due` is no field of a job; put it into `payload`"
        );
    }

    #[test]
    fn unknown_fields_go_into_the_payload_when_asked() {
        let line = br#"{"order":17,"payload":{"total":9.90}}"#;
        let job = job(line, Some("t"), Some(UnknownFields::Payload)).expect("accepted");
        let shown = format!("{job:?}");
        assert!(
            shown.contains(r#"\"order\":17"#) || shown.contains(r#""order":17"#),
            "{shown}"
        );
        assert!(shown.contains("9.90"), "{shown}");
        let refused = super::job(
            br#"{"a":1,"payload":7}"#,
            Some("t"),
            Some(UnknownFields::Payload),
        );
        assert!(refused.is_err());
    }
}
