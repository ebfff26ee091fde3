//! The use of the processors by this process, from Linux's /proc. It is not available on other
//! systems.

use std::time::Instant;

/// The clock ticks per second in /proc, which Linux fixes for programs.
const TICKS: f64 = 100.0;

/// The processor time of this process at the last call.
#[derive(Default)]
pub(crate) struct ProcessorUse(Option<(f64, Instant)>);

impl ProcessorUse {
    /// Returns the part of the processors that this process has used since the last call, in
    /// percent; `None` at the first call, and where it can't be read.
    pub(crate) fn percent(&mut self, now: Instant) -> Option<f64> {
        let used = seconds()?;
        let (before, then) = self.0.replace((used, now))?;
        let passed = now.saturating_duration_since(then).as_secs_f64();
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (passed > 0.0).then(|| 100.0 * (used - before) / passed / processors as f64)
    }
}

/// Returns the processor time of this process, in seconds.
fn seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    read(&stat)
}

/// Reads the user and the system time. The name of the program may have spaces and parentheses; the
/// fields that count follow its last parenthesis.
fn read(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let (user, system) = (ticks()?, ticks()?);
    Some((user + system) as f64 / TICKS)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_is_read_behind_any_name() {
        let stat = "42 (a) b 7) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 5 6 7";
        assert_eq!(read(stat), Some(3.0));
        assert_eq!(read("42 (x) S 1"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_use_is_a_part_of_all_processors() {
        let mut processor = ProcessorUse::default();
        let now = Instant::now();
        assert_eq!(processor.percent(now), None);
        assert_eq!(processor.percent(now), None, "no time has passed");
        let used = processor.percent(now + Duration::from_secs(1_000));
        assert!(
            used.is_some_and(|used| (0.0..100.0).contains(&used)),
            "{used:?}"
        );
    }
}
