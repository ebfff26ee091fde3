//! The setting `type_retry_policies`: the retry policies of types.
//!
//! Policies contain commas, and no `=`. So a word with `=` begins the policy of a type, and a word
//! without belongs to the policy before it: `http=exponential(1s, 2, 1h),sleep=PT10M,PT17M`.

use jobwire_core::RetryPolicy;

use super::value::{Value, words};

/// The retry policy of a type: `http=30s`.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeRetryPolicy {
    /// The type.
    pub job_type: String,
    /// The waits between attempts.
    pub policy: RetryPolicy,
}

const FORM: &str = "write, for example, `http=30s` or `http=exponential(1s, 2, 1h)`";

impl Value for Vec<TypeRetryPolicy> {
    fn read(text: &str) -> Result<Self, String> {
        let mut texts: Vec<(&str, String)> = Vec::new();
        for word in words(text) {
            match (word.rsplit_once('='), texts.last_mut()) {
                (Some((job_type, policy)), _) => {
                    texts.push((job_type.trim(), policy.trim().to_owned()));
                }
                (None, Some((_, policy))) => {
                    policy.push(',');
                    policy.push_str(word);
                }
                (None, None) => return Err(format!("`{word}` has no policy; {FORM}")),
            }
        }
        let mut policies: Self = Vec::new();
        for (job_type, policy) in texts {
            if job_type.is_empty() {
                return Err(format!("`={policy}` has no type; {FORM}"));
            }
            if policy.is_empty() {
                return Err(format!("`{job_type}` has no policy; {FORM}"));
            }
            if policies.iter().any(|known| known.job_type == job_type) {
                return Err(format!("`{job_type}` has two policies; remove one"));
            }
            policies.push(TypeRetryPolicy {
                job_type: job_type.to_owned(),
                policy: RetryPolicy::read(&policy)
                    .map_err(|problem| format!("the policy of `{job_type}`: {problem}"))?,
            });
        }
        Ok(policies)
    }
    fn shown(&self) -> String {
        let shown = |of: &TypeRetryPolicy| format!("{}={}", of.job_type, of.policy.shown());
        self.iter().map(shown).collect::<Vec<_>>().join(",")
    }
}
