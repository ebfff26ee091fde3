//! What disturbed a whole run: outages of its servers, and jumps of the database's clock.

use super::Micros;

/// When what happened, by the database's clock.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    outages: Vec<(Micros, Micros)>,
    jumps: Vec<Jump>,
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    to: Micros,
    by: Micros,
}

impl Calendar {
    /// A server was away.
    pub fn outage(&mut self, from: Micros, until: Micros) {
        self.outages.push((from, until));
    }

    /// The clock of the database jumped ahead. It showed `to` afterwards.
    pub fn jump(&mut self, to: Micros, by: Micros) {
        self.jumps.push(Jump { to, by });
    }

    /// By how much the clock jumped between two moments.
    pub(super) fn jumped(&self, from: Micros, until: Micros) -> Micros {
        let jumps = self.jumps.iter();
        let between = jumps.filter(|jump| from < jump.to && jump.to <= until);
        between.map(|jump| jump.by).sum()
    }

    /// Whether a server was away or the clock jumped between two moments.
    pub(super) fn is_disturbed(&self, from: Micros, until: Micros) -> bool {
        self.jumped(from, until) > 0
            || (self.outages.iter()).any(|outage| outage.0 <= until && from <= outage.1)
    }
}
