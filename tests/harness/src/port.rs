//! Free loopback ports.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Below the range that the kernel uses for outgoing connections: a server that a test stops must
/// find its port still free when it starts again.
const RANGE: std::ops::Range<u16> = 15_000..32_000;

/// Returns a port on 127.0.0.1 that is not in use and that this process has not handed out before.
#[must_use]
pub fn free() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..1000 {
        let port = rand::random_range(RANGE);
        if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            given.insert(port);
            return port;
        }
    }
    panic!(
        "no free port on 127.0.0.1 between {} and {}",
        RANGE.start, RANGE.end
    )
}
