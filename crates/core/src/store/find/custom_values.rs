//! The condition that the custom values of a job contain a JSON object.

use serde_json::Value as Json;

use super::{CustomValues, Statement, Value};
use crate::job::query::MAX_CUSTOM_DEPTH;

/// The columns of a JSON value: its type and the value itself.
#[derive(Clone, Copy)]
struct Place {
    kind: &'static str,
    value: &'static str,
    /// The rows of an object, and of an array.
    fields: &'static str,
    elements: &'static str,
}

macro_rules! place {
    ($kind:expr, $value:expr, $inner:literal) => {
        Place {
            kind: $kind,
            value: $value,
            fields: concat!(
                " AND EXISTS (SELECT 1 FROM json_each(CASE ",
                $kind,
                " WHEN 'object' THEN ",
                $value,
                " ELSE '{}' END) AS ",
                $inner,
                " WHERE ",
                $inner,
                ".key = "
            ),
            elements: concat!(
                " AND EXISTS (SELECT 1 FROM json_each(CASE ",
                $kind,
                " WHEN 'array' THEN ",
                $value,
                " ELSE '[]' END) AS ",
                $inner,
                " WHERE true"
            ),
        }
    };
}

/// The values by their depth. Each depth has a name of its own.
const PLACES: [Place; MAX_CUSTOM_DEPTH + 1] = [
    place!("json_type(j.custom_values)", "j.custom_values", "k1"),
    place!("k1.type", "k1.value", "k2"),
    place!("k2.type", "k2.value", "k3"),
    place!("k3.type", "k3.value", "k4"),
    place!("k4.type", "k4.value", "k5"),
    place!("k5.type", "k5.value", "k6"),
    place!("k6.type", "k6.value", "k7"),
    place!("k7.type", "k7.value", "k8"),
    place!("k8.type", "k8.value", "k9"),
];

impl Statement<'_> {
    pub(super) fn custom_values(&mut self, wanted: &Json) {
        match self.dialect.custom_values {
            CustomValues::Operator(before, behind) => {
                self.sql(before).bind(Value::Text(wanted.to_string()));
                self.sql(behind);
            }
            CustomValues::Fields => self.contains(wanted, 0),
        }
    }

    fn contains(&mut self, wanted: &Json, depth: usize) {
        // A query of more levels was refused before.
        let Some(place) = PLACES.get(depth) else {
            self.sql("false");
            return;
        };
        self.sql("(").sql(place.kind);
        match wanted {
            Json::Null => {
                self.sql(" = 'null'");
            }
            Json::Bool(true) => {
                self.sql(" = 'true'");
            }
            Json::Bool(false) => {
                self.sql(" = 'false'");
            }
            Json::Number(number) => {
                let number = match number.as_i64() {
                    Some(whole) => Value::Number(whole),
                    None => Value::Real(number.as_f64().unwrap_or_default()),
                };
                self.sql(" IN ('integer', 'real') AND ").sql(place.value);
                self.sql(" = ").bind(number);
            }
            Json::String(text) => {
                self.sql(" = 'text' AND ").sql(place.value).sql(" = ");
                self.bind(Value::Text(text.clone()));
            }
            Json::Object(fields) => {
                self.sql(" = 'object'");
                for (name, wanted) in fields {
                    self.sql(place.fields).bind(Value::Text(name.clone()));
                    self.sql(" AND ").contains(wanted, depth + 1);
                    self.sql(")");
                }
            }
            Json::Array(elements) => {
                self.sql(" = 'array'");
                for wanted in elements {
                    self.sql(place.elements).sql(" AND ");
                    self.contains(wanted, depth + 1);
                    self.sql(")");
                }
            }
        }
        self.sql(")");
    }
}
