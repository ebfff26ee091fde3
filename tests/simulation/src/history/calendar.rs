//! The disturbances of a whole run: outages of its servers, faults of nodes, and jumps of the
//! database's clock.

use super::Micros;
use std::collections::BTreeSet;

/// The times of the disturbances, by the database's clock.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    outages: Vec<(Micros, Micros)>,
    /// The nodes with faults, and the times of the faults.
    hurt: Vec<(usize, Micros, Micros)>,
    jumps: Vec<Jump>,
    /// The start of the calm. From then on the only fault is the one to be judged.
    calm: Option<Micros>,
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    to: Micros,
    by: Micros,
    /// The time for which no leader ends a lease.
    doubted: Micros,
}

impl Calendar {
    /// Records that a server was away.
    pub fn outage(&mut self, from: Micros, until: Micros) {
        self.outages.push((from, until));
    }

    /// Records that a node had a fault.
    pub fn hurt(&mut self, node: usize, from: Micros, until: Micros) {
        self.hurt.push((node, from, until));
    }

    /// Records that the clock of the database jumped ahead. It showed `to` afterwards.
    pub fn jump(&mut self, to: Micros, by: Micros, doubted: Micros) {
        self.jumps.push(Jump { to, by, doubted });
    }

    /// Records that the whole machine stood still. There is no calm then.
    pub fn stall(&mut self, from: Micros, until: Micros) {
        self.outage(from, until);
        self.calm = self.calm.filter(|calm| until < *calm);
    }

    /// Records the start of the calm. From then on the only fault is the one to be judged.
    pub fn calm(&mut self, from: Micros) {
        self.calm = Some(from);
    }

    pub(super) fn expects_calm(&self) -> bool {
        self.calm.is_some()
    }

    pub(super) fn is_calm(&self, at: Micros) -> bool {
        self.calm.is_some_and(|calm| calm <= at)
    }

    /// Returns the end of the last outage or node fault, or of the time after a jump of the clock in
    /// which no leader ends a lease.
    #[must_use]
    pub fn end(&self) -> Option<Micros> {
        let outages = self.outages.iter().map(|(_, until)| *until);
        let hurt = self.hurt.iter().map(|(_, _, until)| *until);
        let jumps = self.jumps.iter().map(|jump| jump.to + jump.doubted);
        outages.chain(hurt).chain(jumps).max()
    }

    /// Returns by how much the clock jumped between two times, or zero if there was another fault.
    /// A new leader that has received no beat trusts the clock as it is, so with another fault no
    /// jump excuses a long lease.
    pub(super) fn jumped_alone(&self, from: Micros, until: Micros) -> Micros {
        let alone = !self.outage_between(from, until) && self.hurt_between(from, until) == 0;
        if alone { self.jumped(from, until) } else { 0 }
    }

    /// Returns whether the clock jumped between two times.
    pub(super) fn jumped_between(&self, from: Micros, until: Micros) -> bool {
        self.jumped(from, until) > 0
    }

    fn jumped(&self, from: Micros, until: Micros) -> Micros {
        let jumps = self.jumps.iter();
        let between = jumps.filter(|jump| from < jump.to && jump.to <= until);
        between.map(|jump| jump.by).sum()
    }

    /// Returns whether a server was away, the clock jumped, or several nodes had faults between two
    /// times. With several, one node left its jobs, and the others may have no free slot for them.
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
