//! The commit tap of an engine: the server reports each job and timer that the engine commits.
//!
//! The dialect chooses tables, columns and changes, so that the publication never makes a statement
//! of the engine fail.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use chrono::{DateTime, NaiveDateTime, Utc};
use jobwire_core::StoreError;
use jobwire_core::store::{CommitTap, Committed, TapNews, TapOffer};
use jobwire_tap::{Event, PgPublication, Rows, Tap, TapOptions, preflight};

use crate::EngineStore;

/// The first server on which a publication can select columns and rows.
const SELECTS: i32 = 150_000;

/// The table that every engine has.
const JOBS: &str = "act_ru_job";

/// Returns the publication of the tap of an engine.
///
/// # Errors
/// The database's error.
pub(crate) async fn publication(store: &EngineStore) -> Result<PgPublication, StoreError> {
    let (version, schema): (i32, Option<String>) = sqlx::query_as(
        "SELECT current_setting('server_version_num')::integer,
            (SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1))",
    )
    .bind(JOBS)
    .fetch_one(store.pool())
    .await?;
    let schema = schema.unwrap_or_else(|| "public".to_owned());
    let name: String = format!("jobwire_engine_{}", store.options().name);
    let name = name.chars().take(60).collect::<String>();
    let selects = version >= SELECTS;
    Ok(store.dialect().publication(name, &schema, selects))
}

/// Opens the tap, if the publication exists and the server allows a tap.
pub(crate) async fn open(store: &EngineStore) -> Result<TapOffer, StoreError> {
    let pool = store.pool();
    let publication = publication(store).await?;
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)")
            .bind(&publication.name)
            .fetch_one(pool)
            .await?;
    if !exists {
        return Ok(TapOffer::NotSetUp(format!(
            "the publication `{}` does not exist; create it with `jobwire engine init`",
            publication.name
        )));
    }
    let missing = preflight(store.address(), &publication).await;
    let missing = missing.map_err(|error| StoreError::Config(error.to_string()))?;
    let missing: Vec<String> = missing
        .into_iter()
        .filter(|finding| finding.blocks)
        .map(|finding| format!("{}: {}", finding.found, finding.remedy))
        .collect();
    if !missing.is_empty() {
        return Ok(TapOffer::Unusable(missing.join("; ")));
    }
    let offset: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM (now() AT TIME ZONE $1) - (now() AT TIME ZONE 'UTC'))::double precision",
    )
    .bind(store.dialect().zone().judged())
    .fetch_one(pool)
    .await?;
    let offset = chrono::Duration::milliseconds((offset * 1e3) as i64);
    store.dialect().offset().set(offset);
    let mut tap = TapOptions::default();
    tap.publication.clone_from(&publication.name);
    "jobwire_engine".clone_into(&mut tap.slot_prefix);
    Ok(match Tap::open(store.address().clone(), tap) {
        Ok(tap) => TapOffer::Open(Box::new(EngineTap {
            tap,
            store: store.clone(),
        })),
        Err(error) => TapOffer::Unusable(error.to_string()),
    })
}

struct EngineTap {
    tap: Tap,
    store: EngineStore,
}

impl Drop for EngineTap {
    fn drop(&mut self) {
        self.store.tap_stands(false);
    }
}

#[async_trait]
impl CommitTap for EngineTap {
    async fn next(&mut self) -> TapNews {
        loop {
            let event = self.tap.next().await;
            if let Some(news) = self.news(event) {
                return news;
            }
        }
    }

    fn try_next(&mut self) -> Option<TapNews> {
        loop {
            let event = self.tap.try_next()?;
            if let Some(news) = self.news(event) {
                return Some(news);
            }
        }
    }
}

impl EngineTap {
    fn news(&self, event: Event) -> Option<TapNews> {
        match event {
            Event::Standing => {
                self.store.tap_stands(true);
                Some(TapNews::Standing)
            }
            Event::Gap(error) => {
                self.store.tap_stands(false);
                Some(TapNews::Gap {
                    why: error.to_string(),
                    lasts: error.is_lasting(),
                })
            }
            Event::Rows(rows) => self.committed(&rows).map(TapNews::Committed),
            _ => None,
        }
    }

    fn committed(&self, rows: &Rows) -> Option<Committed> {
        let at = |moment: SystemTime| DateTime::<Utc>::from(moment);
        let mut committed = Committed {
            jobs: Vec::new(),
            timers: 0,
            due: None,
            at: at(rows.committed_at),
            now: at(rows.sent_at),
        };
        let dialect = self.store.dialect();
        // Due dates after the next change to or from summer time are wrong by an hour here. The timer
        // task reads the exact date.
        if !dialect.committed(rows, &mut committed) {
            return None;
        }
        Some(committed)
    }
}

/// Reads a local time as the server writes it.
pub(crate) fn local(text: &str) -> Option<NaiveDateTime> {
    NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f").ok()
}

/// The address of the engine's database, for the connection of the tap.
pub(crate) type TapAddress = Arc<jobwire_tap::Address>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_times_are_read_as_the_server_writes_them() {
        for text in ["2026-11-25 18:17:53.396", "2026-11-25 18:17:53"] {
            assert!(local(text).is_some(), "{text}");
        }
        for strange in [
            "infinity",
            "12026-11-25 18:17:53",
            "0044-03-15 12:00:00 BC",
            "",
        ] {
            let _ = local(strange);
        }
        assert_eq!(local("infinity"), None);
    }
}
