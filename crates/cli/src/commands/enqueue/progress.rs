//! Shows the progress: a bar on a terminal, nothing elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

pub(super) struct Progress(Option<ProgressBar>);

const BAR: &str = "{bar:30} {bytes}/{total_bytes}, {msg}, {eta} to go";
const SPINNER: &str = "{spinner} {bytes}, {msg}, {elapsed}";

impl Progress {
    /// Starts the display. `size` is the number of bytes of the input, if known.
    pub(super) fn start(size: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let (bar, template) = match size {
            Some(size) => (ProgressBar::new(size), BAR),
            None => (ProgressBar::new_spinner(), SPINNER),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(Some(bar))
    }

    pub(super) fn at(&self, bytes: u64, jobs: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(bytes);
            bar.set_message(format!("{jobs} jobs"));
        }
    }

    /// Prints beside the bar.
    pub(super) fn aside(&self, print: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
