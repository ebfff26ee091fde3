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
    /// From then on nothing was broken but what is to be judged.
    calm: Option<Micros>,
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    to: Micros,
    by: Micros,
    /// For so long no leader ends a lease.
    doubted: Micros,
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
    pub fn jump(&mut self, to: Micros, by: Micros, doubted: Micros) {
        self.jumps.push(Jump { to, by, doubted });
    }

    /// From now on nothing is broken but what is to be judged.
    pub fn calm(&mut self, from: Micros) {
        self.calm = Some(from);
    }

    pub(super) fn expects_calm(&self) -> bool {
        self.calm.is_some()
    }

    pub(super) fn is_calm(&self, at: Micros) -> bool {
        self.calm.is_some_and(|calm| calm <= at)
    }

    /// When the last of it is over.
    #[must_use]
    pub fn end(&self) -> Option<Micros> {
        let outages = self.outages.iter().map(|(_, until)| *until);
        outages
            .chain(self.hurt.iter().map(|(_, _, until)| *until))
            .max()
    }

    /// By how much the clock jumped between two moments. A leader that is new and has heard no beat believes the clock
    /// that it sees: where something else was broken, too, nothing is known.
    pub(super) fn jumped_alone(&self, from: Micros, until: Micros) -> Micros {
        let alone = !self.outage_between(from, until) && self.hurt_between(from, until) == 0;
        if alone { self.jumped(from, until) } else { 0 }
    }

    fn jumped(&self, from: Micros, until: Micros) -> Micros {
        let jumps = self.jumps.iter();
        let between = jumps.filter(|jump| from < jump.to && jump.to <= until);
        between.map(|jump| jump.by).sum()
    }

    /// Whether a server was away, the clock jumped, or several nodes were hurt between two moments: one of them left
    /// its jobs, and the other ones may have no free slot for them.
    pub(super) fn is_disturbed(&self, from: Micros, until: Micros) -> bool {
        let doubted = |jump: &Jump| jump.to - jump.by <= until && from <= jump.to + jump.doubted;
        self.jumps.iter().any(doubted)
            || self.hurt_between(from, until) > 1
            || self.outage_between(from, until)
    }

    fn outage_between(&self, from: Micros, until: Micros) -> bool {
        (self.outages.iter()).any(|(begin, end)| *begin <= until && from <= *end)
    }

    fn hurt_between(&self, from: Micros, until: Micros) -> usize {
        let hurt = self.hurt.iter();
        let hurt = hurt.filter(|(_, begin, end)| *begin <= until && from <= *end);
        let nodes: BTreeSet<usize> = hurt.map(|(node, ..)| *node).collect();
        nodes.len()
    }
}
