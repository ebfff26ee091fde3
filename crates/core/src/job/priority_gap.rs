//! Gaps between the ranges of priorities that the nodes of a fleet take.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::job::scope::{Scope, Services};

/// A range of priorities that no living node takes, although one takes other priorities of the same
/// types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PriorityGap {
    /// The lowest priority of the gap; `None` if it has no lower bound.
    pub min: Option<i64>,
    /// The highest priority of the gap; `None` if it has no upper bound.
    pub max: Option<i64>,
    /// The types, sorted.
    pub types: Vec<String>,
}

impl fmt::Display for PriorityGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (Some(min), Some(max)) if min == max => write!(f, "priority {min}"),
            (Some(min), Some(max)) => write!(f, "priorities {min} to {max}"),
            (Some(min), None) => write!(f, "priorities of {min} and above"),
            (None, Some(max)) => write!(f, "priorities of {max} and below"),
            (None, None) => f.write_str("all priorities"),
        }
    }
}

impl Services {
    /// Returns the ranges of priorities that no node takes, lowest first. Deployments, categories
    /// and tenants are left aside: a priority counts as taken if a node takes it for some of them.
    #[must_use]
    pub fn priority_gaps(&self) -> Vec<PriorityGap> {
        let mut gaps: BTreeMap<(Option<i64>, Option<i64>), Vec<String>> = BTreeMap::new();
        if !self
            .groups
            .iter()
            .any(|group| group.scope.limits_priorities())
        {
            return Vec::new();
        }
        for name in self.types.iter() {
            let of_type = self
                .groups
                .iter()
                .filter(|group| group.types.contains(name));
            for gap in gaps_between(of_type.map(|group| &group.scope)) {
                gaps.entry(gap).or_default().push(name.clone());
            }
        }
        let gaps = gaps.into_iter();
        gaps.map(|((min, max), types)| PriorityGap { min, max, types })
            .collect()
    }
}

/// Returns the priorities outside the ranges of these scopes, lowest first, as inclusive ranges.
fn gaps_between<'s>(scopes: impl Iterator<Item = &'s Scope>) -> Vec<(Option<i64>, Option<i64>)> {
    let mut ranges: Vec<(i64, i64)> = scopes
        .map(|scope| {
            let (min, max) = (scope.min_priority, scope.max_priority);
            (min.unwrap_or(i64::MIN), max.unwrap_or(i64::MAX))
        })
        .filter(|(min, max)| min <= max)
        .collect();
    ranges.sort_unstable();
    let bound = |value: i64| (value != i64::MIN && value != i64::MAX).then_some(value);
    let mut gaps = Vec::new();
    // The lowest priority that no range before has; `None` after the highest one of all.
    let mut next = Some(i64::MIN);
    for (min, max) in ranges {
        let Some(from) = next else { break };
        if min > from {
            gaps.push((bound(from), bound(min - 1)));
        }
        if max >= from {
            next = max.checked_add(1);
        }
    }
    if let Some(from) = next {
        gaps.push((bound(from), None));
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::scope::Group;

    fn group(types: &[&str], scope: Scope) -> Group {
        Group {
            types: types.iter().map(|name| (*name).to_owned()).collect(),
            scope,
        }
    }

    #[test]
    fn priorities_that_no_node_takes_are_gaps() {
        let from = |min| Scope::default().min_priority(min);
        let range = |min, max| from(min).max_priority(max);
        let gaps = |groups: Vec<Group>| {
            let gaps = Services::of(groups).priority_gaps();
            let said = |gap: &PriorityGap| format!("{gap} of {}", gap.types.join(", "));
            gaps.iter().map(said).collect::<Vec<_>>()
        };
        let mail = |scope| group(&["mail"], scope);
        assert!(gaps(vec![mail(Scope::default().tenants(["acme"]))]).is_empty());
        assert!(gaps(vec![mail(from(5)), mail(Scope::default())]).is_empty());
        assert!(gaps(vec![mail(range(i64::MIN, 4)), mail(from(5))]).is_empty());
        // Ranges that overlap, and one inside another.
        assert_eq!(
            gaps(vec![
                mail(range(0, 50)),
                mail(range(10, 20)),
                mail(range(40, 99)),
                mail(from(101))
            ]),
            ["priorities of -1 and below of mail", "priority 100 of mail"]
        );
        // A node for one of the types only, and a range that is empty.
        assert_eq!(
            gaps(vec![
                group(&["fax", "mail"], range(0, 9)),
                mail(range(10, 20)),
                mail(range(9, 8))
            ]),
            [
                "priorities of -1 and below of fax, mail",
                "priorities of 10 and above of fax",
                "priorities of 21 and above of mail"
            ]
        );
        assert_eq!(gaps(vec![mail(range(9, 8))]), ["all priorities of mail"]);
        assert!(gaps(vec![mail(range(i64::MIN, i64::MAX))]).is_empty());
    }
}
