//! Encryption of payloads by a hook of the application.
//!
//! The application brings the cipher and its keys ([`PayloadCipher`]). A client with an
//! [`Encryption`] seals the payload of each job that it creates, and a node with one opens it
//! before the handler. The row has an envelope instead of the payload, which names the key:
//!
//! ```json
//! {"$sealed":{"v":1,"key":"2026-11","data":"…base64…"}}
//! ```
//!
//! A payload without an envelope is plaintext: plain SQL wrote it, or a client without encryption.

mod envelope;
#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::job::Job;
use crate::job::any_error::Error;
use crate::job::new_job::{InvalidJob, NewJob};
use crate::job::{batch, tags};
use envelope::{is_sealed, read};

/// The maximum length of the id of a key, in bytes.
const MAX_KEY_BYTES: usize = 256;
/// The prefix of the types of Jobwire's own jobs, which have no secrets.
const OWN_TYPES: &str = "jobwire.";

/// Ciphertext, and the key that opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ciphertext {
    /// The id of the key: not empty, at most 256 bytes, no secret. It is stored beside the data, so
    /// that keys can be changed.
    pub key: String,
    /// The encrypted data, with everything but the key that the cipher needs: nonce and tag.
    pub data: Vec<u8>,
}

/// The place of encrypted data. A cipher with associated data (AEAD) should bind the data to it, so
/// that the payload of a job can't be put into the row of a job of another type or tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SealedIn<'a> {
    /// `payload`, `custom_values` or `checkpoint`.
    pub field: &'static str,
    /// The type of the job.
    pub job_type: &'a str,
    /// The tenant of the job.
    pub tenant: Option<&'a str>,
}

impl SealedIn<'_> {
    /// Returns the place as bytes, the same for each call. Two places never have the same bytes.
    #[must_use]
    pub fn associated_data(&self) -> Vec<u8> {
        let tenant = self
            .tenant
            .map_or_else(String::new, |tenant| format!("={tenant}"));
        let mut bytes = Vec::new();
        for part in ["jobwire", self.field, self.job_type, &tenant] {
            bytes.extend((part.len() as u64).to_be_bytes());
            bytes.extend(part.as_bytes());
        }
        bytes
    }
}

/// Encrypts and decrypts the payloads of jobs. The calls come from tasks of the runtime, so they must
/// not block: keep the keys in memory.
///
/// `examples/encryption.rs` has an implementation with AES-256-GCM.
pub trait PayloadCipher: Send + Sync + 'static {
    /// Encrypts data with the newest key.
    ///
    /// # Errors
    /// Any error; then the job is not created.
    fn encrypt(&self, place: &SealedIn<'_>, plain: &[u8]) -> Result<Ciphertext, Error>;

    /// Decrypts data with the key that it names.
    ///
    /// # Errors
    /// Any error, for example an unknown key; then the attempt fails.
    fn decrypt(&self, place: &SealedIn<'_>, sealed: &Ciphertext) -> Result<Vec<u8>, Error>;
}

/// The encryption of a client ([`Client::encrypting`](crate::Client::encrypting)) or a node
/// ([`NodeOptions::encryption`](crate::NodeOptions::encryption)). Clones share the cipher.
#[derive(Clone)]
pub struct Encryption {
    cipher: Arc<dyn PayloadCipher>,
    custom_values: bool,
    refuses_plaintext: bool,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption")
            .field("custom_values", &self.custom_values)
            .field("refuses_plaintext", &self.refuses_plaintext)
            .finish_non_exhaustive()
    }
}

/// The reason why a payload or another field of a job could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The node has no encryption.
    #[error(
        "field `{field}` is encrypted with key `{key}`, and this node has no cipher; set \
         `NodeOptions::encryption`, then retry the job"
    )]
    NoCipher {
        /// The field.
        field: &'static str,
        /// The id of the key.
        key: String,
    },
    /// The cipher could not decrypt the field.
    #[error(
        "field `{field}` could not be decrypted with key `{key}`: {cause}; give the cipher this \
         key, then retry the job"
    )]
    Decrypt {
        /// The field.
        field: &'static str,
        /// The id of the key.
        key: String,
        /// The error of the cipher.
        cause: Error,
    },
    /// The envelope has no form that this version reads.
    #[error("field `{field}` has an envelope of encrypted data that can't be read: {problem}")]
    Envelope {
        /// The field.
        field: &'static str,
        /// The problem.
        problem: String,
    },
    /// The payload is plaintext, and the node refuses it.
    #[error(
        "field `payload` is not encrypted, and this node refuses plaintext; create the job by a \
         client with `Client::encrypting`, or leave out `Encryption::refuse_plaintext`"
    )]
    Plaintext,
    /// The cipher could not encrypt the field.
    #[error("field `{field}` could not be encrypted: {cause}")]
    Encrypt {
        /// The field.
        field: &'static str,
        /// The error of the cipher.
        cause: Error,
    },
}

impl Job {
    /// Returns the id of the key with which the payload is [encrypted](crate::job::sealed); `None` if
    /// it is plaintext.
    #[must_use]
    pub fn payload_key(&self) -> Option<String> {
        let text = Some(self.payload.get()).filter(|text| is_sealed(text))?;
        read("payload", text).ok().map(|sealed| sealed.key)
    }
}

impl Encryption {
    /// Encrypts payloads and checkpoints with this cipher.
    #[must_use]
    pub fn new(cipher: impl PayloadCipher) -> Self {
        Self {
            cipher: Arc::new(cipher),
            custom_values: false,
            refuses_plaintext: false,
        }
    }

    /// Encrypts custom values, too. The [tags](crate::NewJob::tag) in them stay readable.
    #[must_use]
    pub fn and_custom_values(mut self) -> Self {
        self.custom_values = true;
        self
    }

    /// Lets a node fail jobs whose payload is plaintext, unless it is `null`. Without this they run
    /// like any other: jobs of plain SQL and of clients without encryption.
    #[must_use]
    pub fn refuse_plaintext(mut self) -> Self {
        self.refuses_plaintext = true;
        self
    }

    fn seal(
        &self,
        place: &SealedIn<'_>,
        plain: &str,
        tags: Option<Box<RawValue>>,
    ) -> Result<Box<RawValue>, SealError> {
        let field = place.field;
        let fails = |cause: Error| SealError::Encrypt { field, cause };
        let sealed = self
            .cipher
            .encrypt(place, plain.as_bytes())
            .map_err(fails)?;
        if sealed.key.is_empty() || sealed.key.len() > MAX_KEY_BYTES {
            let problem = format!("the id of the key must have 1 to {MAX_KEY_BYTES} bytes");
            return Err(fails(problem.into()));
        }
        envelope::write(sealed, tags).map_err(|error| fails(error.into()))
    }

    /// Encrypts the payload of a new job, and its custom values if asked to.
    pub(crate) fn seal_job(&self, mut job: NewJob) -> Result<NewJob, InvalidJob> {
        if job.job_type.starts_with(OWN_TYPES) {
            return Ok(job);
        }
        let remedy = "look at the cipher of `Client::encrypting`";
        let (job_type, tenant) = (job.job_type.clone(), job.tenant.clone());
        let place = |field| SealedIn {
            field,
            job_type: &job_type,
            tenant: tenant.as_deref(),
        };
        if let Ok(payload) = &job.payload {
            let sealed = self.seal(&place("payload"), payload.get(), None);
            let said = |error: SealError| InvalidJob::new("payload", error.to_string(), remedy);
            job.payload = Ok(sealed.map_err(said)?);
        }
        if self.custom_values
            && let Some(values) = &job.custom_values
        {
            let tags = tags::text_of(values.get());
            let sealed = self.seal(&place("custom_values"), values.get(), tags);
            let said =
                |error: SealError| InvalidJob::new("custom_values", error.to_string(), remedy);
            job.custom_values = Some(sealed.map_err(said)?);
        }
        Ok(job)
    }

    /// Encrypts a new job like [`seal_job`](Self::seal_job), but keeps a field of `known` that is the
    /// same in plaintext and encrypted with the newest key.
    pub(crate) fn seal_again(&self, job: NewJob, known: &NewJob) -> Result<NewJob, InvalidJob> {
        let mut sealed = self.seal_job(job.clone())?;
        let keep = |field, known: &RawValue, fresh: &mut Box<RawValue>, plain: &str| {
            let place = SealedIn {
                field,
                job_type: &job.job_type,
                tenant: job.tenant.as_deref(),
            };
            // Another program may have written anything around the ciphertext.
            let known = Some(known.get()).filter(|text| is_sealed(text));
            let (Some(Ok(known)), Ok(newest)) = (
                known.map(|text| read(field, text)),
                read(field, fresh.get()),
            ) else {
                return;
            };
            let is_same = known.key == newest.key
                && self.open(&place, &known).is_ok_and(|text| text == plain);
            let tags = (field == "custom_values")
                .then(|| tags::text_of(plain))
                .flatten();
            if is_same && let Ok(kept) = envelope::write(known, tags) {
                *fresh = kept;
            }
        };
        if let (Ok(known), Ok(fresh), Ok(plain)) =
            (&known.payload, &mut sealed.payload, &job.payload)
        {
            keep("payload", known, fresh, plain.get());
        }
        if let (Some(known), Some(fresh), Some(plain)) = (
            &known.custom_values,
            &mut sealed.custom_values,
            &job.custom_values,
        ) {
            keep("custom_values", known, fresh, plain.get());
        }
        Ok(sealed)
    }

    /// Encrypts the checkpoint of a job.
    pub(crate) fn seal_checkpoint(&self, job: &Job, plain: &str) -> Result<String, SealError> {
        let sealed = self.seal(&SealedIn::of(job, "checkpoint"), plain, None)?;
        Ok(String::from(Box::<str>::from(sealed)))
    }

    fn open(&self, place: &SealedIn<'_>, sealed: &Ciphertext) -> Result<String, SealError> {
        let fails = |cause: Error| SealError::Decrypt {
            field: place.field,
            key: sealed.key.clone(),
            cause,
        };
        // A cipher that panics at hostile data would end the attempt without spending it.
        let opened = catch_unwind(AssertUnwindSafe(|| self.cipher.decrypt(place, sealed)));
        let plain = opened
            .unwrap_or_else(|_| Err("the cipher panicked".into()))
            .map_err(fails)?;
        String::from_utf8(plain).map_err(|error| fails(error.into()))
    }

    /// Returns the job with its payload and its custom values in plaintext, for programs that read
    /// jobs by [`Client::get`](crate::Client::get).
    ///
    /// # Errors
    /// [`SealError`]: a field can't be decrypted.
    pub fn open_job(&self, job: &Job) -> Result<Job, SealError> {
        let opened = opened(Some(self), job);
        match opened {
            Err(SealError::Plaintext) => Ok(job.clone()),
            opened => Ok(opened?.unwrap_or_else(|| job.clone())),
        }
    }
}

impl<'a> SealedIn<'a> {
    fn of(job: &'a Job, field: &'static str) -> Self {
        Self {
            field,
            job_type: &job.job_type,
            tenant: job.tenant.as_deref(),
        }
    }
}

/// Returns a text in plaintext; `None` if it is plaintext already.
pub(crate) fn opened_text(
    encryption: Option<&Encryption>,
    job: &Job,
    field: &'static str,
    text: &str,
) -> Result<Option<String>, SealError> {
    if !is_sealed(text) {
        return Ok(None);
    }
    let sealed = read(field, text)?;
    let Some(encryption) = encryption else {
        let key = sealed.key;
        return Err(SealError::NoCipher { field, key });
    };
    encryption
        .open(&SealedIn::of(job, field), &sealed)
        .map(Some)
}

/// Returns the job with its fields in plaintext; `None` if they are so already.
pub(crate) fn opened(encryption: Option<&Encryption>, job: &Job) -> Result<Option<Job>, SealError> {
    let json = |field, text: String| {
        RawValue::from_string(text).map_err(|error| SealError::Envelope {
            field,
            problem: format!("it holds no JSON: {error}"),
        })
    };
    let payload = opened_text(encryption, job, "payload", job.payload.get())?;
    let refuses = encryption.is_some_and(|encryption| encryption.refuses_plaintext);
    if refuses
        && payload.is_none()
        && job.payload.get() != "null"
        && !job.job_type.starts_with(OWN_TYPES)
    {
        return Err(SealError::Plaintext);
    }
    let values = match &job.custom_values {
        Some(values) => opened_text(encryption, job, "custom_values", values.get())?
            .map(|opened| batch::carry(values.get(), opened)),
        None => None,
    };
    if payload.is_none() && values.is_none() {
        return Ok(None);
    }
    let mut job = job.clone();
    if let Some(payload) = payload {
        job.payload = json("payload", payload)?;
    }
    if let Some(values) = values {
        job.custom_values = Some(json("custom_values", values)?);
    }
    Ok(Some(job))
}
