//! Texts in the form in which the database stores them.

/// Replaces NUL, which cannot be stored as text, and cuts the text to `bytes`.
pub(crate) fn storable(text: String, bytes: usize) -> String {
    let mut text = text.replace('\0', "\u{fffd}");
    if text.len() > bytes {
        let end = (0..=bytes)
            .rev()
            .find(|i| text.is_char_boundary(*i))
            .unwrap_or(0);
        text.truncate(end);
    }
    text
}
