//! Texts in the form in which the database stores them.

/// Replaces NUL, which cannot be stored as text, and cuts the text to `bytes`.
pub(crate) fn storable(mut text: String, bytes: usize) -> String {
    if text.contains('\0') {
        text = text.replace('\0', "\u{fffd}");
    }
    text.truncate(text.floor_char_boundary(bytes));
    text
}
