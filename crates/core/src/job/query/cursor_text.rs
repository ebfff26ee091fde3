//! The text of a cursor: hexadecimal digits, with a checksum at the end.

use std::fmt;

/// Maximum length of the text of a cursor.
pub(crate) const MAX_BYTES: usize = 8192;

/// Writes the bytes of a cursor, and their checksum.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, mut bytes: Vec<u8>) -> fmt::Result {
    bytes.extend(checksum(&bytes).to_be_bytes());
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Reads the bytes of a cursor. Returns `None` if the text was changed, or is none.
pub(crate) fn read(text: &str) -> Option<Vec<u8>> {
    if text.len() > MAX_BYTES || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let digits = text.as_bytes().chunks_exact(2);
    let bytes: Option<Vec<u8>> = digits
        .map(|pair| {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            u8::try_from(digit(0)? * 16 + digit(1)?).ok()
        })
        .collect();
    let mut bytes = bytes?;
    let (rest, sum) = bytes.split_last_chunk::<4>()?;
    if checksum(rest) != u32::from_be_bytes(*sum) {
        return None;
    }
    bytes.truncate(rest.len());
    Some(bytes)
}

/// Returns a checksum (FNV-1a) that tells a text that was cut or mistyped. It is no signature: a
/// forged cursor names another place in the same list.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}
