//! What disturbed a whole run: outages of its servers, and jumps of the database's clock.

use super::Micros;
use std::collections::BTreeSet;

/// When what happened, by the database's clock.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    outages: Vec<(Micros, Micros)>,
    /// Nodes that were hurt, and when.
    hurt: Vec<(usize, Micros, Micros)>,
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

    /// A node was hurt.
    pub fn hurt(&mut self, node: usize, from: Micros, until: Micros) {
        self.hurt.push((node, from, until));
    }

    /// The clock of the database jumped ahead. It showed `to` afterwards.
    pub fn jump(&mut self, to: Micros, by: Micros) {
        self.jumps.push(Jump { to, by });
    }

    /// When the last of it is over.
    #[must_use]
    pub fn end(&self) -> Option<Micros> {
        let outages = self.outages.iter().map(|(_, until)| *until);
        outages
            .chain(self.hurt.iter().map(|(_, _, until)| *until))
            .max()
    }

    /// By how much the clock jumped between two moments.
    pub(super) fn jumped(&self, from: Micros, until: Micros) -> Micros {
        let jumps = self.jumps.iter();
        let between = jumps.filter(|jump| from < jump.to && jump.to <= until);
        between.map(|jump| jump.by).sum()
    }

    /// Whether a server was away, the clock jumped, or several nodes were hurt between two moments: one of them left its
    /// jobs, and the other ones may have no free slot for them.
    pub(super) fn is_disturbed(&self, from: Micros, until: Micros) -> bool {
        let hurt = self.hurt.iter();
        let hurt = hurt.filter(|(_, begin, end)| *begin <= until && from <= *end);
        let nodes: BTreeSet<usize> = hurt.map(|(node, ..)| *node).collect();
        self.jumped(from, until) > 0
            || nodes.len() > 1
            || (self.outages.iter()).any(|(begin, end)| *begin <= until && from <= *end)
    }
}
