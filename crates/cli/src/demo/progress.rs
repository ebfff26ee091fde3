//! Shows the progress on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The time between two plain lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Shows the progress of a run.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    title: &'static str,
    started: Instant,
    said: Option<Instant>,
}

impl Progress {
    pub(super) fn start(title: &'static str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) =
                ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} jobs {elapsed} {msg}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(title);
            bar
        });
        Self {
            bar,
            title,
            started: Instant::now(),
            said: None,
        }
    }

    /// Shows that `done` of `of` jobs are done.
    pub(super) fn show(&mut self, done: u64, of: u64, more: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(of);
            bar.set_position(done);
            bar.set_message(more.to_owned());
            return;
        }
        if self.said.is_some_and(|said| said.elapsed() < PAUSE) {
            return;
        }
        self.said = Some(Instant::now());
        let seconds = self.started.elapsed().as_secs_f64();
        self.say(&format!(
            "{:6.1} s  {}: {done} of {of} jobs {more}",
            seconds, self.title
        ));
    }

    /// Prints a separate line.
    pub(super) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => say(text),
        }
    }
}

/// Prints to standard error, which may be closed.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
