//! The place of a panic. A caught panic has a message and no place, so a hook notes the place of
//! the last panic of each thread.
//!
//! The hook calls the previous hook, so panics are printed and reported as before. A program that
//! replaces the hook later loses only the places.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::sync::Once;

/// A panic of this thread.
struct Noted {
    message: String,
    place: String,
}

thread_local! {
    static LAST: RefCell<Option<Noted>> = const { RefCell::new(None) };
}

/// Installs the hook, once for the process.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    // The standard library refuses a change of the hook in a thread that panics.
    if std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            note(panic);
            before(panic);
        }));
    });
}

fn note(panic: &PanicHookInfo<'_>) {
    let Some(at) = panic.location() else { return };
    let mut place = format!("at {}:{}:{}", at.file(), at.line(), at.column());
    // Captured only if RUST_BACKTRACE or RUST_LIB_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        place = format!("{place}\n{backtrace}");
    }
    let message = message(panic.payload());
    // Not possible while the thread ends.
    let _ = LAST.try_with(|last| last.replace(Some(Noted { message, place })));
}

/// Returns the place of a panic that this thread has just caught: `at FILE:LINE:COLUMN`, followed
/// by the backtrace if `RUST_BACKTRACE` asks for one. Returns `None` if the panic came from another
/// thread, or the hook was replaced.
pub(crate) fn place_of(panic: &(dyn Any + Send)) -> Option<String> {
    let last = LAST.try_with(RefCell::take).ok()??;
    // A panic that was resumed, such as that of a joined task, calls no hook. The note is of
    // another panic then.
    (last.message == message(panic)).then_some(last.place)
}

/// Returns the message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, panic_any, resume_unwind};

    #[test]
    fn a_caught_panic_has_its_place_and_a_resumed_one_has_none() {
        install();
        let line = line!() + 1;
        let panic = catch_unwind(|| panic!("bad luck")).unwrap_err();
        let place = place_of(&*panic).expect("the hook noted it");
        assert!(
            place.starts_with(&format!("at {}:{line}:", file!())),
            "{place}"
        );
        assert_eq!(place_of(&*panic), None, "it is taken once");

        let noted = catch_unwind(|| panic!("another one")).unwrap_err();
        let resumed = catch_unwind(|| resume_unwind(Box::new("elsewhere"))).unwrap_err();
        assert_eq!(place_of(&*resumed), None);
        drop(noted);

        let other = catch_unwind(|| panic_any(17)).unwrap_err();
        assert_eq!(message(&*other), "without a message");
        assert!(place_of(&*other).is_some());
    }
}
