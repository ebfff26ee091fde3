//! `lanes set`: rules from a TOML file.
//!
//! ```toml
//! [[rule]]
//! lane = "critical"
//! min_priority = 100
//!
//! [[rule]]
//! lane = "mail"
//! type = "send-mail"
//! ```
//! Either all rules are replaced or none. All mistakes are reported together.

use std::path::Path;

use jobwire_core::{LaneRule, Store, lane::rule};

use crate::error::Error;
use crate::output;
use crate::settings::Settings;
use crate::tables::Tables;

const TABLES: Tables = Tables {
    key: "rule",
    noun: "rule",
    nouns: "rules",
    // Far more than rules need.
    most_bytes: 1 << 20,
    examples: &[("lane", "\"bulk\"")],
    changes: true,
};

pub(super) fn check(file: &Path) -> Result<(), Error> {
    let rules = TABLES.read(file, parse)?;
    let count = output::count(rules.len() as u64, "rule");
    output::line(format_args!("{count}, all valid; nothing was changed"))
}

pub(super) async fn set(settings: &Settings, store: &dyn Store, file: &Path) -> Result<(), Error> {
    let rules = TABLES.read(file, parse)?;
    store.set_lane_rules(&rules).await?;
    let count = output::count(rules.len() as u64, "rule");
    output::line(format_args!(
        "{count} set; existing jobs keep their lanes (`jobwire lanes move` changes them)"
    ))?;
    let mut foreign: Vec<&str> = rules
        .iter()
        .filter(|rule| settings.lanes.iter().all(|share| share.lane != rule.lane))
        .map(|rule| rule.lane.as_str())
        .collect();
    foreign.sort_unstable();
    foreign.dedup();
    if !foreign.is_empty() {
        output::line(format_args!(
            "nodes with these settings do not receive {}; make sure that other nodes do",
            foreign.join(", ")
        ))?;
    }
    Ok(())
}

/// Parses the rules, or returns all mistakes in them.
fn parse(text: &str) -> Result<Vec<LaneRule>, Vec<String>> {
    let mut mistakes = Vec::new();
    let entries = TABLES.entries(text, &mut mistakes)?.unwrap_or_else(|| {
        mistakes
            .push("there is no rule; write `[[rule]]` tables, or `rule = []` for none".to_owned());
        Vec::new()
    });
    let count = entries.len();
    let mut rules = Vec::new();
    for (at, entry) in entries.into_iter().enumerate() {
        match entry.try_into::<LaneRule>() {
            Ok(rule) => rules.push(rule),
            Err(error) => mistakes.push(TABLES.mistake(at, error.message())),
        }
    }
    // Mistakes name other rules by number, so all rules must be readable.
    if rules.len() == count
        && let Err(bad) = rule::validate(&rules)
    {
        mistakes.extend(bad.iter().map(ToString::to_string));
    }
    if mistakes.is_empty() {
        Ok(rules)
    } else {
        Err(mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_in_their_order() {
        let rules = parse(
            "[[rule]]\nlane = \"critical\"\nmin_priority = 100\n\n[[rule]]\nlane = \"mail\"\ntype \
             = \"send\"\ntenant = \"a\"\ncategory = \"c\"\nmax_priority = 5\n",
        )
        .expect("all is well");
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].lane.as_str(), "critical");
        assert_eq!(rules[0].min_priority, Some(100));
        assert_eq!(rules[1].job_type.as_deref(), Some("send"));
        assert_eq!(rules[1].max_priority, Some(5));
        assert_eq!(parse("rule = []"), Ok(Vec::new()));
    }

    #[test]
    fn every_mistake_is_said_at_once() {
        let said = parse(
            "lanes = 1\n[[rule]]\nlane = \"a\"\npriority = 3\n[[rule]]\ntype = \
             \"x\"\n[[rule]]\nlane = 7\n",
        )
        .expect_err("mistakes")
        .join("\n");
        for part in [
            "`lanes` is unknown",
            "rule 1: ",
            "`priority`",
            "rule 2: ",
            "`lane`",
            "rule 3: ",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let said = parse(
            "[[rule]]\nlane = \"a b\"\n[[rule]]\nlane = \"x\"\nmin_priority = 2\nmax_priority = 1\n",
        )
        .expect_err("mistakes")
        .join("\n");
        assert!(
            said.contains("rule 1: `lane` is `a b`") && said.contains("rule 2: `min_priority`"),
            "{said}"
        );
        assert!(parse("").expect_err("none").join("").contains("rule = []"));
        assert!(
            parse("rule = 3")
                .expect_err("no list")
                .join("")
                .contains("no list")
        );
        assert!(
            parse("= 3")
                .expect_err("no TOML")
                .join("")
                .contains("not TOML")
        );
    }
}
