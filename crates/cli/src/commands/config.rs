//! `jobwire config`: shows the settings in effect and their sources.

use clap::Args;

use crate::error::Error;
use crate::output;
use crate::settings::{Remark, Settings, markdown};

/// Arguments.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Print the page docs/reference/settings.md
    #[arg(long, hide = true)]
    pub markdown: bool,
}

pub(crate) fn markdown() -> Result<(), Error> {
    output::line(markdown::page().trim_end())
}

pub(crate) fn show(settings: &Settings) -> Result<(), Error> {
    let rows: Vec<[String; 3]> = settings
        .shown()
        .into_iter()
        .map(|(setting, value)| {
            let value = if value.is_empty() {
                "-".to_owned()
            } else {
                value
            };
            [
                setting.key.to_owned(),
                value,
                settings.origin(setting.key).to_string(),
            ]
        })
        .collect();
    output::table(["setting", "value", "from"], &rows)?;
    for Remark {
        setting,
        found,
        remedy,
    } in settings.remarks()
    {
        output::line(format_args!("remark: `{setting}` {found}; {remedy}"))?;
    }
    Ok(())
}
