//! Strikes: each counts one death of a node that held the job (rule 26).

use super::{Invariant, Single};
use crate::history::event::Strikes;

/// The number of strikes from which a job runs alone, and from which a death counts only if the job
/// ran alone.
const SUSPECT: i32 = 2;

impl Single<'_> {
    pub(super) fn strikes_changed(&mut self, strikes: Strikes) {
        let Strikes {
            before,
            after,
            taken_off,
            alone,
        } = strikes;
        let wrong = if let Some(fence) = taken_off {
            let counts = before < SUSPECT || alone;
            if counts {
                self.struck.push(fence);
            }
            (after != before + i32::from(counts)).then_some("the end of a lease")
        } else {
            let one = self.struck.pop();
            (after != before - 1 || one.is_none()).then_some("the removal of a strike")
        };
        if let Some(what) = wrong {
            let text = format!("{what} changed the strikes from {before} to {after}");
            self.violation(Invariant::I14, text);
        }
        if usize::try_from(after).is_ok_and(|after| after > self.struck.len()) {
            let deaths = self.struck.len();
            let text = format!("it has {after} strikes, and {deaths} of its holders died");
            self.violation(Invariant::I14, text);
        }
    }
}
