//! The ids of an engine's jobs as [`JobId`]s.
//!
//! A hint, a lease book and a metric name a job by a UUID. The engine names it by a text of at most
//! 64 characters. The codec is reversible, so neither side needs a table:
//!
//! | id of the engine | generator | UUID |
//! | --- | --- | --- |
//! | canonical UUID text, version 1 to 7 | Flowable's default | the same bits |
//! | `JOB-` and such a UUID | `usePrefixId` | the version is 8 larger |
//! | a decimal number, also after `JOB-` | the database's `next.dbid` | version 8, a marker, the number |
//!
//! Every other id is refused ([`UnknownId`]), because the engine has its own id generator. The
//! [probe](crate::flowable) refuses such an engine before a node starts.

use jobwire_core::JobId;
use uuid::Uuid;

/// The prefix of every kind of job.
const PREFIX: &str = "JOB-";
/// The upper half of the UUID of a number: `JOBWI`, version 8, and the kind in the last bit.
const NUMBER: u64 = 0x4a4f_4257_4900_8000;
/// The kind of a number after [`PREFIX`].
const PREFIXED: u64 = 1;

/// An id of a form that no known generator writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the job id `{}` is neither a UUID nor a number, with or without `JOB-`: the engine has an id \
     generator of its own, and Jobwire can't name its jobs; use the engine's StrongUuidGenerator",
    .0.escape_debug()
)]
pub struct UnknownId(pub String);

/// Returns the job id of an engine's id.
///
/// # Errors
/// [`UnknownId`] for a form that can't be restored.
pub fn job_id(text: &str) -> Result<JobId, UnknownId> {
    encode(text).ok_or_else(|| UnknownId(text.chars().take(64).collect()))
}

/// Returns the engine's id of a job, or `None` if no engine's id has this UUID.
#[must_use]
pub fn engine_id(id: JobId) -> Option<String> {
    let uuid = id.uuid();
    match uuid.get_version_num() {
        1..=7 => Some(uuid.hyphenated().to_string()),
        8 => number(uuid),
        9..=15 => {
            let plain = Uuid::from_u128(uuid.as_u128() ^ (8 << 76));
            Some(format!("{PREFIX}{}", plain.hyphenated()))
        }
        _ => None,
    }
}

fn encode(text: &str) -> Option<JobId> {
    let (prefixed, rest) = match text.strip_prefix(PREFIX) {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if let Some(number) = canonical_number(rest) {
        let kind = if prefixed { PREFIXED } else { 0 };
        let uuid = Uuid::from_u64_pair(NUMBER | kind, (1 << 63) | number);
        return Some(JobId::from_uuid(uuid));
    }
    let uuid = Uuid::try_parse(rest).ok()?;
    let is_canonical = uuid.hyphenated().to_string() == rest;
    if !is_canonical || !(1..=7).contains(&uuid.get_version_num()) {
        return None;
    }
    let bits = uuid.as_u128() | (u128::from(prefixed) * (8 << 76));
    Some(JobId::from_uuid(Uuid::from_u128(bits)))
}

/// Returns the number if the text is its canonical form and it has at most 62 bits.
fn canonical_number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number < 1 << 62 && number.to_string() == text).then_some(number)
}

fn number(uuid: Uuid) -> Option<String> {
    let (upper, lower) = uuid.as_u64_pair();
    let number = lower & ((1 << 62) - 1);
    if lower >> 62 != 0b10 {
        return None;
    }
    match upper ^ NUMBER {
        0 => Some(number.to_string()),
        PREFIXED => Some(format!("{PREFIX}{number}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use std::collections::HashSet;

    /// Returns an id as one of the known generators writes it.
    fn generated(random: &mut impl Rng) -> String {
        let prefix = if random.random() { PREFIX } else { "" };
        if random.random_ratio(1, 3) {
            let bits = random.random_range(0..62);
            return format!("{prefix}{}", random.random_range(0_u64..=1 << bits));
        }
        let version = random.random_range(1..=7_u128);
        let bits = random.random::<u128>() & !(0xf << 76) | version << 76;
        format!("{prefix}{}", Uuid::from_u128(bits).hyphenated())
    }

    #[test]
    fn every_generated_id_comes_back_and_no_two_share_a_uuid() {
        let mut random = rand::rng();
        let (mut texts, mut ids) = (HashSet::new(), HashSet::new());
        for _ in 0..20_000 {
            let text = generated(&mut random);
            let id = job_id(&text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(engine_id(id).as_deref(), Some(&*text));
            if texts.insert(text) {
                assert!(ids.insert(id), "{id}");
            }
        }
    }

    #[test]
    fn a_uuid_that_comes_from_outside_names_one_id_or_none() {
        let mut random = rand::rng();
        for _ in 0..20_000 {
            let id = JobId::from_uuid(Uuid::from_u128(random.random()));
            if let Some(text) = engine_id(id) {
                assert_eq!(job_id(&text), Ok(id));
            }
        }
    }

    #[test]
    fn ids_of_other_forms_are_refused() {
        let uuid = "0198c0de-7777-7000-8000-000000000001";
        assert!(job_id(uuid).is_ok());
        for text in [
            "",
            "JOB-",
            "-1",
            "+1",
            "007",
            "4611686018427387904",
            "PRC-0198c0de-7777-7000-8000-000000000001",
            "0198C0DE-7777-7000-8000-000000000001",
            "0198c0de77777000800000000000000001",
            "0198c0de-7777-8000-8000-000000000001",
            "0198c0de-7777-0000-8000-000000000001",
            "order-17",
        ] {
            assert!(job_id(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_error_names_the_id_and_the_remedy() {
        let said = job_id("a\nb").expect_err("refused").to_string();
        assert!(said.contains("`a\\nb`") && said.contains("StrongUuidGenerator"));
    }
}
