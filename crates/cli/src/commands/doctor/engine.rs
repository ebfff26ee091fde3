//! Checks a process engine.

use jobwire_core::TapMode;
use jobwire_engines::examine::Level;

use super::finding::Findings;
use crate::commands::engine::connect;
use crate::settings::Settings;

pub(super) async fn examine(settings: &Settings, findings: &mut Findings) {
    let store = match connect(settings).await {
        Ok(store) => store,
        Err(error) => return findings.error("engine", error),
    };
    match store.examine().await {
        Ok(found) => {
            let is_off = settings.engine_tap() == TapMode::Off;
            for finding in found {
                if is_off && finding.about == "tap" {
                    continue;
                }
                let remedy = finding.remedy.unwrap_or_default();
                match finding.level {
                    Level::Fine => findings.fine(finding.about, finding.found),
                    Level::Remark => findings.remark(finding.about, finding.found, remedy),
                    Level::Wrong if remedy.is_empty() => {
                        findings.error(finding.about, finding.found);
                    }
                    Level::Wrong => findings.wrong(finding.about, finding.found, remedy),
                }
            }
        }
        Err(error) => findings.error("engine", error),
    }
    if !store.has_tap() {
        findings.fine("tap", "none: the engine's hook publishes the hints");
    } else if settings.engine_tap() == TapMode::Off {
        findings.fine(
            "tap",
            "off, by the setting `tap`: the engine's hook publishes the hints",
        );
    }
    store.close().await;
}
