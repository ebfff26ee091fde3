//! The `jobwire` program. Its code is in the library `jobwire_cli`.

use std::process::ExitCode;

/// The allocator. Jobs make many small allocations on one thread that are freed on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    jobwire_cli::main()
}
