//! Crash points: named places of a job's life at which a test kills the process, or makes a task panic.
//!
//! Without the feature `failpoints` there are none: `crash_point!` is nothing then.
//! With it, the program reads the variable `FAILPOINTS` when it starts ([`arm`]) and each point looks whether
//! it is named there:
//!
//! * `completion-committed=return` ends the process at the first time that it comes by, as kill -9 would:
//!   nothing is flushed, closed, rolled back or told to anybody;
//! * `completion-committed=2*off->return` does so at the third time;
//! * `task-leader=3*panic` lets that background task panic at its first three starts.
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

/// Look at `FAILPOINTS` from now on. Nothing without the feature.
pub fn arm() {
    #[cfg(feature = "failpoints")]
    if std::env::var_os("FAILPOINTS").is_some_and(|points| !points.is_empty()) {
        // Its end would disarm the points; they are for the life of the process.
        std::mem::forget(fail::FailScenario::setup());
    }
}

/// Die here, if somebody asked for it.
#[cfg(feature = "failpoints")]
pub fn reach(name: &str) {
    fail::fail_point!(name, |_| std::process::abort());
}

/// A background task starts: let it panic, if somebody asked for it. Nothing without the feature.
pub fn task_starts(task: &str) {
    #[cfg(feature = "failpoints")]
    reach(&format!("task-{}", task.replace(' ', "-")));
    #[cfg(not(feature = "failpoints"))]
    let _ = task;
}
