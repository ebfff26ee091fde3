//! The setting `type_limits`: the limits of types in the fleet.
//!
//! | text | limit |
//! | --- | --- |
//! | `http=10` | ten jobs run at once |
//! | `http=100/1s` | 100 jobs start in any second |
//! | `http=100/1s/burst:20` | also at most 20 in any fifth of a second |
//! | `http=2/tenant`, `http=100/1s/tenant` | for each tenant |
//! | `http=10/fair:tenant`, `http=100/1s/fair:tenant` | tenants take turns while jobs wait |

use std::time::Duration;

use jobwire_core::Limit;
use jobwire_core::job::duration;

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
    /// Whether the jobs of each tenant are counted alone.
    pub per_tenant: bool,
    /// Whether tenants take turns while jobs wait.
    pub fair_per_tenant: bool,
}

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
        if self.per_tenant {
            limit = limit.per_tenant();
        }
        if self.fair_per_tenant {
            limit = limit.fair_per_tenant();
        }
        limit
    }

    fn read(word: &str) -> Result<Self, String> {
        const FORM: &str = "write, for example, `http=10`, `http=100/1s`, `http=100/1s/burst:20`, \
                            `http=2/tenant` or `http=10/fair:tenant`";
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
            per_tenant: false,
            fair_per_tenant: false,
        };
        for part in parts {
            let is_new = if part == "tenant" {
                !std::mem::replace(&mut of.per_tenant, true)
            } else if part == "fair:tenant" {
                !std::mem::replace(&mut of.fair_per_tenant, true)
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
                        "`{part}` in `{word}` is neither a period, `burst:` with a number, \
                         `tenant`, nor `fair:tenant`; {FORM}"
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
        if self.per_tenant && self.fair_per_tenant {
            return Err(format!(
                "`{word}` counts each tenant alone, so there are no others to take turns with; remove \
                 `tenant` or `fair:tenant`"
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
            if of.per_tenant {
                text.push_str("/tenant");
            }
            if of.fair_per_tenant {
                text.push_str("/fair:tenant");
            }
            text
        };
        self.iter().map(shown).collect::<Vec<_>>().join(",")
    }
}
