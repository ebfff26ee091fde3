//! The setting `type_limits`: the limits of types in the fleet.
//!
//! | text | limit |
//! | --- | --- |
//! | `http=10` | ten jobs run at once |
//! | `http=100/1s` | 100 jobs start in any second |
//! | `http=100/1s/burst:20` | also at most 20 in any fifth of a second |
//! | `http=2/tenant`, `http=100/1s/tenant` | for each tenant |
//! | `http=2/category`, `http=2/value:customer` | for each category, or each value of this custom value |
//! | `http=10/fair:tenant`, `…/fair:category`, `…/fair:value:customer` | these take turns while jobs wait |
//! | `http=10/named:mail-server,event=10/named:mail-server` | for the jobs of these types together |

use std::time::Duration;

use jobwire_core::Limit;
use jobwire_core::job::duration;

use super::limit_key::LimitKey;
use super::value::{Value, words};

/// The longest period of a burst.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The limit of a type in the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeLimit {
    /// The type.
    pub job_type: String,
    /// The number of its jobs that run at once, or start in the period.
    pub number: u32,
    /// The period of a rate.
    pub period: Option<Duration>,
    /// The number of jobs of a rate that start at once, if it is another one.
    pub burst: Option<u32>,
    /// The key whose jobs are counted alone.
    pub key: Option<LimitKey>,
    /// The key that takes turns while jobs wait.
    pub fair: Option<LimitKey>,
    /// The name by which types share the limit. Default: the type.
    pub name: Option<String>,
}

const FORM: &str = "write, for example, `http=10`, `http=100/1s`, `http=100/1s/burst:20`, `http=2/tenant`, \
                    `http=2/value:customer`, `http=10/fair:tenant` or `http=10/named:mail-server`";

impl TypeLimit {
    /// Returns the limit for the handler.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let mut limit = match self.period {
            Some(period) => Limit::rate(self.number, period),
            None => Limit::running(self.number),
        };
        if let Some(burst) = self.burst {
            limit = limit.burst(burst);
        }
        if let Some(key) = &self.key {
            limit = key.count_alone(limit);
        }
        if let Some(key) = &self.fair {
            limit = key.take_turns(limit);
        }
        match &self.name {
            Some(name) => limit.named(name),
            None => limit,
        }
    }

    /// Returns the name of the limit.
    fn shared_name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.job_type)
    }

    fn read(word: &str) -> Result<Self, String> {
        if word.contains("/burst=") {
            let right = word.replace("/burst=", "/burst:");
            return Err(format!("`{word}` has a burst with `=`; write `{right}`"));
        }
        let Some((job_type, limit)) = word.rsplit_once('=') else {
            return Err(format!("`{word}` has no limit; {FORM}"));
        };
        let job_type = job_type.trim();
        if job_type.is_empty() {
            return Err(format!("`{word}` has no type; {FORM}"));
        }
        let mut parts = limit.split('/').map(str::trim);
        let number = positive(parts.next().unwrap_or_default());
        let mut of = Self {
            job_type: job_type.to_owned(),
            number: number.ok_or_else(|| {
                format!("`{word}` names no number from 1 to {}; {FORM}", u32::MAX)
            })?,
            period: None,
            burst: None,
            key: None,
            fair: None,
            name: None,
        };
        for part in parts {
            let fair = part.strip_prefix("fair:").map(str::trim);
            let is_new = if let Some(key) = LimitKey::read(part) {
                of.key.replace(named(key, part, word)?).is_none()
            } else if let Some(key) = fair.and_then(LimitKey::read) {
                of.fair.replace(named(key, part, word)?).is_none()
            } else if let Some(name) = part.strip_prefix("named:").map(str::trim) {
                if name.is_empty() {
                    return Err(format!(
                        "`{part}` in `{word}` names nothing; write, for example, \
                         `http=10/named:mail-server`"
                    ));
                }
                of.name.replace(name.to_owned()).is_none()
            } else if let Some(burst) = part.strip_prefix("burst:") {
                let burst = positive(burst.trim());
                let burst = burst.ok_or_else(|| {
                    format!(
                        "the burst of `{word}` is no number from 1 to {}; {FORM}",
                        u32::MAX
                    )
                })?;
                of.burst.replace(burst).is_none()
            } else {
                let period = duration::parse(part).map_err(|_| {
                    format!(
                        "`{part}` in `{word}` is neither a period, `burst:` with a number, `tenant`, \
                         `category`, `value:` with a field of the custom values, one of these three \
                         behind `fair:`, nor `named:` with a name; {FORM}"
                    )
                })?;
                of.period.replace(period).is_none()
            };
            if !is_new {
                return Err(format!("`{word}` names `{part}` and another one; {FORM}"));
            }
        }
        of.check(word)
    }

    fn check(self, word: &str) -> Result<Self, String> {
        if let Some(key) = self
            .key
            .as_ref()
            .filter(|key| self.fair.as_ref() == Some(*key))
        {
            let key = key.shown();
            return Err(format!(
                "`{word}` counts each `{key}` alone, so there are no others to take turns with; remove \
                 `{key}` or `fair:{key}`"
            ));
        }
        let Some(period) = self.period else {
            return match self.burst {
                Some(_) => Err(format!(
                    "`{word}` has a burst and no period; write, for example, `http=100/1s/burst:20`"
                )),
                None => Ok(self),
            };
        };
        let burst = u128::from(self.burst.unwrap_or(self.number));
        if period.as_nanos().saturating_mul(burst) / u128::from(self.number) > LONGEST.as_nanos() {
            return Err(format!(
                "the period of `{word}` is longer than a day; write a shorter one, or a smaller burst"
            ));
        }
        Ok(self)
    }
}

/// Checks that a field of the custom values has a name.
fn named(key: LimitKey, part: &str, word: &str) -> Result<LimitKey, String> {
    if key.is_nameless() {
        return Err(format!(
            "`{part}` in `{word}` names no field of the custom values; write, for example, \
             `http=2/value:customer`"
        ));
    }
    Ok(key)
}

/// Checks that types that share a limit have the same one: otherwise the more generous one holds.
fn check_shared(limits: &[TypeLimit]) -> Result<(), String> {
    for (index, of) in limits.iter().enumerate() {
        let other = limits.iter().take(index).find(|other| {
            let same = other.shared_name() == of.shared_name();
            same && TypeLimit {
                job_type: of.job_type.clone(),
                name: of.name.clone(),
                ..(*other).clone()
            } != *of
        });
        if let Some(other) = other {
            return Err(format!(
                "`{}` and `{}` share the limit `{}` and differ in it; write the same limit for both, or \
                 give one of them another name (`named:`)",
                other.job_type,
                of.job_type,
                of.shared_name()
            ));
        }
    }
    Ok(())
}

fn positive(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number > 0)
}

impl Value for Vec<TypeLimit> {
    fn read(text: &str) -> Result<Self, String> {
        let mut limits: Self = Vec::new();
        for word in words(text) {
            let of = TypeLimit::read(word)?;
            if limits.iter().any(|known| known.job_type == of.job_type) {
                return Err(format!("`{}` has two limits; remove one", of.job_type));
            }
            limits.push(of);
        }
        check_shared(&limits)?;
        Ok(limits)
    }
    fn shown(&self) -> String {
        let shown = |of: &TypeLimit| {
            let mut text = format!("{}={}", of.job_type, of.number);
            if let Some(period) = of.period {
                text.push('/');
                text.push_str(&duration::write(period));
            }
            if let Some(burst) = of.burst {
                text.push_str(&format!("/burst:{burst}"));
            }
            if let Some(key) = &of.key {
                text.push_str(&format!("/{}", key.shown()));
            }
            if let Some(key) = &of.fair {
                text.push_str(&format!("/fair:{}", key.shown()));
            }
            if let Some(name) = &of.name {
                text.push_str(&format!("/named:{name}"));
            }
            text
        };
        self.iter().map(shown).collect::<Vec<_>>().join(",")
    }
}
