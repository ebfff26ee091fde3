//! Crash points: named places in a job's life at which a test kills the process or makes a task
//! panic.
//!
//! Without the feature `failpoints`, `crash_point!` does nothing. With it, the program reads the
//! variable `FAILPOINTS` when it starts ([`arm`]), and each point checks whether the variable names
//! it:
//!
//! * `completion-committed=return` ends the process the first time it reaches the point, like kill
//!   -9: nothing is flushed, closed, rolled back or sent;
//! * `completion-committed=2*off->return` does so the third time;
//! * `task-leader=3*panic` makes that background task panic at its first three starts.
//!
//! docs/operating/faults.md lists the points, and what must hold after a death at each.

/// A place at which a test may kill the process. See the [module](mod@crate::runtime::crash_point).
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::runtime::crash_point::reach($name)
    };
}

/// A place at which a test may kill the process. See the [module](mod@crate::runtime::crash_point).
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {};
}

/// Reads `FAILPOINTS` and arms the points that it names. Does nothing without the feature.
pub fn arm() {
    #[cfg(feature = "failpoints")]
    if std::env::var_os("FAILPOINTS").is_some_and(|points| !points.is_empty()) {
        // Dropping the scenario would disarm the points; they stay armed for the life of the
        // process.
        std::mem::forget(fail::FailScenario::setup());
    }
}

/// Ends the process if `FAILPOINTS` names this point.
#[cfg(feature = "failpoints")]
pub fn reach(name: &str) {
    fail::fail_point!(name, |_| std::process::abort());
}

/// Marks the start of a background task, which panics here if `FAILPOINTS` names it. Does nothing
/// without the feature.
pub fn task_starts(task: &str) {
    #[cfg(feature = "failpoints")]
    reach(&format!("task-{}", task.replace(' ', "-")));
    #[cfg(not(feature = "failpoints"))]
    let _ = task;
}
