//! Checks the commit tap: whether it can stand, and whether another publication breaks the tables.

use jobwire_core::store::postgres::About;
use jobwire_core::{PgStore, TapMode};

use super::finding::Findings;
use crate::error::Error;
use crate::settings::Settings;

pub(super) async fn examine(settings: &Settings, store: &PgStore, findings: &mut Findings) {
    let (found, set_up) = match (store.examine_tap().await, store.has_tap().await) {
        (Ok(found), Ok(set_up)) => (found, set_up),
        (Err(error), _) | (_, Err(error)) => return findings.error("tap", Error::Store(error)),
    };
    for finding in &found {
        if finding.about == About::OtherPublication {
            findings.wrong("tap", finding.found.clone(), finding.remedy.clone());
        }
    }
    match (settings.tap, set_up) {
        (TapMode::Off, _) => return findings.fine("tap", "off, by the setting `tap`"),
        (TapMode::Auto, false) => {
            return findings.fine(
                "tap",
                "not set up: jobs of plain SQL wait for the leader; `jobwire tap create` sets it up",
            );
        }
        _ => {}
    }
    let own = found.iter().filter(|f| f.about != About::OtherPublication);
    let mut usable = true;
    for finding in own {
        if finding.blocks {
            usable = false;
            findings.wrong("tap", finding.found.clone(), finding.remedy.clone());
        } else {
            findings.remark("tap", finding.found.clone(), finding.remedy.clone());
        }
    }
    if usable {
        findings.fine(
            "tap",
            "set up: jobs of plain SQL get their hints when they commit, from five minutes after \
             `jobwire tap create` at the latest (`jobwire_tap_standing` of the leader is 1 then)",
        );
    }
}
