//! Lane rules: they choose the lane of a job whose creator names none.
//!
//! Rules are stored in the database, so that they apply to jobs from the library, from SQL and from
//! every other writer. The first rule by position whose conditions all hold gives the lane; without
//! one, the lane is `default`. A job keeps its lane through retries and timers; new rules apply to
//! new jobs. [`crate::producer::lane_move`] moves the jobs of a lane that is removed.

use serde::{Deserialize, Serialize};

use crate::job::Lane;
use crate::job::new_job::MAX_FIELD_BYTES;

/// Maximum number of rules: each insert of a job without a lane reads them.
pub const MAX_RULES: usize = 256;

/// A lane for the jobs that meet all conditions. An absent condition holds for every job.
///
/// ```
/// use jobwire_core::LaneRule;
///
/// let urgent_mail = LaneRule::to("urgent").job_type("send-mail").min_priority(100);
/// # assert_eq!(urgent_mail.min_priority, Some(100));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct LaneRule {
    /// The lane.
    pub lane: Lane,
    /// Only jobs of this handler type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// Only jobs of this category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Only jobs of this tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Only jobs of this priority or a higher one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_priority: Option<i64>,
    /// Only jobs of this priority or a lower one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i64>,
}

/// A mistake in a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {position}: {problem}")]
pub struct BadRule {
    /// The position of the rule, from 1.
    pub position: usize,
    /// The mistake and its remedy.
    pub problem: String,
}

impl LaneRule {
    /// Creates a rule without conditions: it applies to every job.
    #[must_use]
    pub fn to(lane: impl Into<String>) -> Self {
        Self {
            lane: Lane(lane.into()),
            job_type: None,
            category: None,
            tenant: None,
            min_priority: None,
            max_priority: None,
        }
    }

    /// Limits the rule to jobs of this handler type.
    #[must_use]
    pub fn job_type(mut self, job_type: impl Into<String>) -> Self {
        self.job_type = Some(job_type.into());
        self
    }

    /// Limits the rule to jobs of this category.
    #[must_use]
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = Some(category.into());
        self
    }

    /// Limits the rule to jobs of this tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Limits the rule to jobs of this priority or a higher one.
    #[must_use]
    pub fn min_priority(mut self, priority: i64) -> Self {
        self.min_priority = Some(priority);
        self
    }

    /// Limits the rule to jobs of this priority or a lower one.
    #[must_use]
    pub fn max_priority(mut self, priority: i64) -> Self {
        self.max_priority = Some(priority);
        self
    }

    /// Returns whether every job that meets this rule's conditions also meets those of `other`.
    fn is_within(&self, other: &Self) -> bool {
        let asks_no_less =
            |mine: &Option<String>, theirs: &Option<String>| theirs.is_none() || mine == theirs;
        asks_no_less(&self.job_type, &other.job_type)
            && asks_no_less(&self.category, &other.category)
            && asks_no_less(&self.tenant, &other.tenant)
            && other
                .min_priority
                .is_none_or(|theirs| self.min_priority.is_some_and(|mine| mine >= theirs))
            && other
                .max_priority
                .is_none_or(|theirs| self.max_priority.is_some_and(|mine| mine <= theirs))
    }

    fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !Lane::is_valid(&self.lane.0) {
            found.push(format!(
                "`lane` is `{}`; use 1 to 64 letters, digits, `-`, `_` or `.`",
                self.lane.0.escape_debug()
            ));
        }
        for (field, text) in [
            ("type", &self.job_type),
            ("category", &self.category),
            ("tenant", &self.tenant),
        ] {
            let Some(text) = text else { continue };
            if text.is_empty() {
                found.push(format!(
                    "`{field}` is empty; leave it out to accept every value"
                ));
            } else if text.len() > MAX_FIELD_BYTES || text.contains('\0') {
                found.push(format!(
                    "`{field}` has a value that no job can have; give 1 to {MAX_FIELD_BYTES} bytes \
                     without NUL"
                ));
            }
        }
        if let (Some(min), Some(max)) = (self.min_priority, self.max_priority)
            && min > max
        {
            found.push(format!(
                "`min_priority` {min} is more than `max_priority` {max}, so no job matches; swap \
                 them"
            ));
        }
        found
    }
}

/// Checks rules in their order.
///
/// # Errors
/// Returns all mistakes: invalid values, and rules that are never reached.
pub fn validate(rules: &[LaneRule]) -> Result<(), Vec<BadRule>> {
    let mut bad = Vec::new();
    // Only rules without other mistakes, because a mistake may make a rule match too many jobs.
    let mut sound: Vec<(usize, &LaneRule)> = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let position = at + 1;
        let mut problems = rule.problems();
        if problems.is_empty() {
            if let Some((first, _)) = sound.iter().find(|(_, other)| rule.is_within(other)) {
                problems.push(format!(
                    "is never reached: rule {first} takes every job that it matches; move it up, \
                     or remove it"
                ));
            }
            sound.push((position, rule));
        }
        bad.extend(
            problems
                .into_iter()
                .map(|problem| BadRule { position, problem }),
        );
    }
    if rules.len() > MAX_RULES {
        bad.push(BadRule {
            position: MAX_RULES + 1,
            problem: format!(
                "there are {} rules; at most {MAX_RULES} are allowed: let creators name the lane \
                 instead",
                rules.len()
            ),
        });
    }
    if bad.is_empty() { Ok(()) } else { Err(bad) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(lane: &str, min: Option<i64>, max: Option<i64>) -> LaneRule {
        LaneRule {
            min_priority: min,
            max_priority: max,
            ..LaneRule::to(lane)
        }
    }

    #[test]
    fn rules_that_work_are_accepted() {
        let mail = LaneRule {
            job_type: Some("mail".to_owned()),
            ..LaneRule::to("mail")
        };
        let urgent_mail = LaneRule {
            min_priority: Some(50),
            ..mail.clone()
        };
        let rules = [
            priority("critical", Some(100), None),
            urgent_mail,
            mail,
            priority("bulk", None, Some(-1)),
            LaneRule::to("rest"),
        ];
        assert_eq!(validate(&rules), Ok(()));
        assert_eq!(validate(&[]), Ok(()));
    }

    #[test]
    fn all_mistakes_are_reported_at_once_with_their_rule() {
        let rules = [
            priority("a b", Some(5), Some(1)),
            LaneRule {
                tenant: Some(String::new()),
                ..LaneRule::to("x")
            },
            priority("high", Some(10), None),
            priority("higher", Some(20), Some(30)),
            LaneRule::to("all"),
            priority("low", None, Some(3)),
        ];
        let said: Vec<String> = validate(&rules)
            .expect_err("mistakes")
            .iter()
            .map(ToString::to_string)
            .collect();
        for (at, part) in [
            "rule 1: `lane` is `a b`",
            "rule 1: `min_priority` 5 is more than `max_priority` 1",
            "rule 2: `tenant` is empty",
            "rule 4: is never reached: rule 3 takes",
            "rule 6: is never reached: rule 5 takes",
        ]
        .iter()
        .enumerate()
        {
            assert!(said[at].starts_with(part), "{part} in {said:?}");
        }
        assert_eq!(said.len(), 5, "{said:?}");
    }

    #[test]
    fn too_many_rules_are_refused() {
        let rules: Vec<LaneRule> = (0..=256)
            .map(|n| priority("x", Some(1000 - n), Some(1000 - n)))
            .collect();
        assert!(validate(&rules).is_err());
        assert_eq!(validate(&rules[1..]), Ok(()));
    }
}
