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

use std::io::Read;
use std::path::Path;

use jobwire_core::{LaneRule, Store, lane::rule};

use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Maximum size of the file, far more than rules need.
const MOST_BYTES: u64 = 1 << 20;

pub(super) fn check(file: &Path) -> Result<(), Error> {
    let rules = read(file)?;
    let count = output::count(rules.len() as u64, "rule");
    output::line(format_args!("{count}, all valid; nothing was changed"))
}

pub(super) async fn set(settings: &Settings, store: &dyn Store, file: &Path) -> Result<(), Error> {
    let rules = read(file)?;
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

fn read(file: &Path) -> Result<Vec<LaneRule>, Error> {
    let name = file.display();
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(MOST_BYTES)
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(MOST_BYTES).read_to_string(&mut text))
    };
    let read = read.map_err(Error::io(format!("can't read {name}")))?;
    if read as u64 >= MOST_BYTES {
        return Err(Error::Input(format!(
            "{name} is longer than {MOST_BYTES} bytes; give a file of rules"
        )));
    }
    parse(&text).map_err(|mistakes| {
        Error::Input(format!(
            "{name}: nothing was changed\n  {}",
            mistakes.join("\n  ")
        ))
    })
}

/// Parses the rules, or returns all mistakes in them.
fn parse(text: &str) -> Result<Vec<LaneRule>, Vec<String>> {
    let table: toml::Table =
        toml::from_str(text).map_err(|e| vec![format!("this is not TOML: {}", e.message())])?;
    let mut mistakes: Vec<String> = table
        .keys()
        .filter(|key| *key != "rule")
        .map(|key| format!("`{key}` is unknown; write `[[rule]]` tables only"))
        .collect();
    let entries = match table.get("rule") {
        Some(toml::Value::Array(entries)) => entries.as_slice(),
        Some(_) => {
            mistakes.push("`rule` is no list; write each rule as a `[[rule]]` table".to_owned());
            &[]
        }
        None => {
            mistakes.push(
                "there is no rule; write `[[rule]]` tables, or `rule = []` for none".to_owned(),
            );
            &[]
        }
    };
    let mut rules = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        match entry.clone().try_into::<LaneRule>() {
            Ok(rule) => rules.push(rule),
            Err(error) => mistakes.push(format!("rule {}: {}", at + 1, error.message())),
        }
    }
    // Mistakes name other rules by number, so all rules must be readable.
    if rules.len() == entries.len()
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
