//! The envelope that a row has instead of a plain field.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Ciphertext, SealError};

/// The key of the envelope.
const SEALED: &str = "$sealed";
/// The version of the envelope.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Envelope {
    #[serde(rename = "$sealed")]
    sealed: Content,
    /// Labels stay readable, so that lists can be filtered by them.
    #[serde(rename = "$tags", default, skip_serializing_if = "Option::is_none")]
    tags: Option<Box<RawValue>>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    v: u32,
    key: String,
    data: String,
}

/// Returns whether a JSON text is an envelope. Reads only its beginning.
pub(super) fn is_sealed(text: &str) -> bool {
    let inner = text.trim_start().strip_prefix('{').map(str::trim_start);
    let key = inner.and_then(|inner| inner.strip_prefix('"'));
    let rest = key.and_then(|key| key.strip_prefix(SEALED));
    rest.is_some_and(|rest| rest.starts_with('"'))
}

/// Reads an envelope.
pub(super) fn read(field: &'static str, text: &str) -> Result<Ciphertext, SealError> {
    let wrong = |problem: String| SealError::Envelope { field, problem };
    let envelope: Envelope =
        serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let Content { v, key, data } = &envelope.sealed;
    if *v != VERSION {
        return Err(wrong(format!(
            "its version is {v}, and this program reads {VERSION}"
        )));
    }
    let data = STANDARD
        .decode(data)
        .map_err(|error| wrong(error.to_string()))?;
    Ok(Ciphertext {
        key: key.clone(),
        data,
    })
}

/// Writes an envelope.
pub(super) fn write(
    sealed: Ciphertext,
    tags: Option<Box<RawValue>>,
) -> serde_json::Result<Box<RawValue>> {
    serde_json::value::to_raw_value(&Envelope {
        sealed: Content {
            v: VERSION,
            key: sealed.key,
            data: STANDARD.encode(&sealed.data),
        },
        tags,
    })
}
