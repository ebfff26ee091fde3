//! docs/reference/settings.md, made from the table.

use std::fmt::Write;

use super::TABLE;

const HEAD: &str = "\
# Configuration

<!-- Made by `jobwire config --markdown`; a test compares them. -->

Every setting can be given in `jobwire.toml` (in the working directory, or named by `--config FILE` or
`JOBWIRE_CONFIG`), as an environment variable, or as a flag of any command. A flag wins over the
environment, the environment over the file. `jobwire config` shows what holds, and where it came from.

Durations are written `500ms`, `30s`, `5m`, `1h`, `2d`, or ISO 8601 `PT5M`. Lists are separated by commas,
in the file also `[\"a\", \"b\"]`. An unknown key or an unknown `JOBWIRE_…` variable is an error. All mistakes
are reported at once. Passwords in URLs are never shown.

";

/// The page.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str(
        "| setting | environment | flag | default | meaning |\n| --- | --- | --- | --- | --- |\n",
    );
    for setting in TABLE {
        let default = if setting.default.is_empty() {
            "none".to_owned()
        } else {
            format!("`{}`", setting.default)
        };
        // Writing to a string can't fail.
        let _ = writeln!(
            page,
            "| `{}` | `{}` | `--{} {}` | {default} | {} |",
            setting.key,
            setting.variable(),
            setting.flag,
            setting.value,
            setting.help.replace('|', "\\|"),
        );
    }
    page
}
