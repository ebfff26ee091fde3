//! Certificates for servers and clients that speak TLS, as PEM files.
//!
//! ```no_run
//! # use jobwire_harness::Authority;
//! let authority = Authority::new();
//! let server = authority.server(); // for localhost and 127.0.0.1
//! let client = authority.client("jobwire"); // its common name
//! let stranger = Authority::new().client("jobwire"); // no server here trusts it
//! ```
//!
//! The files exist as long as the [`Authority`] that made them. Keys are unencrypted EC P-256 keys
//! in PKCS#8 form, which every broker reads.

use crate::Scratch;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// A certificate authority of one test. Two authorities do not trust each other.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: PathBuf,
    scratch: Scratch,
}

/// A certificate and its key, signed by an [`Authority`].
#[derive(Clone, Debug)]
pub struct Identity {
    /// The file with the certificate.
    pub certificate: PathBuf,
    /// The file with its private key.
    pub key: PathBuf,
}

impl Identity {
    /// Replaces the files with another identity's certificate and key, as a certificate renewal
    /// does.
    ///
    /// # Panics
    /// If the files can't be written.
    pub fn become_like(&self, other: &Identity) {
        for (from, to) in [
            (&other.key, &self.key),
            (&other.certificate, &self.certificate),
        ] {
            std::fs::copy(from, to)
                .unwrap_or_else(|error| panic!("cannot write {}: {error}", to.display()));
        }
    }
}

impl Authority {
    /// Makes an authority with a key and a name of its own.
    #[must_use]
    pub fn new() -> Authority {
        let scratch = Scratch::new();
        let key = key();
        let name = format!("Jobwire test authority {}", Uuid::new_v4().simple());
        let mut params = params(&name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("a certificate");
        Authority {
            certificate: scratch.write("ca.pem", certificate.pem()),
            issuer: Issuer::new(params, key),
            scratch,
        }
    }

    /// The file with the authority's own certificate. A program that has it trusts what the
    /// authority signed.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// Makes a server's identity for `localhost`, `127.0.0.1` and `::1`.
    #[must_use]
    pub fn server(&self) -> Identity {
        self.server_for(&["localhost", "127.0.0.1", "::1"])
    }

    /// Makes a server's identity for these names and addresses only.
    #[must_use]
    pub fn server_for(&self, names: &[&str]) -> Identity {
        let common_name = names.first().copied().unwrap_or("nobody");
        let params = params(common_name, names);
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Makes a server's identity that expired in 2001.
    #[must_use]
    pub fn expired_server(&self) -> Identity {
        let mut params = params("localhost", &["localhost", "127.0.0.1", "::1"]);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Makes a client's identity; brokers use the common name as its user.
    #[must_use]
    pub fn client(&self, common_name: &str) -> Identity {
        let params = params(common_name, &[]);
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, purpose: ExtendedKeyUsagePurpose) -> Identity {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let name = Uuid::new_v4().simple();
        Identity {
            certificate: self
                .scratch
                .write(&format!("{name}.pem"), certificate.pem()),
            key: self
                .scratch
                .write(&format!("{name}.key"), key.serialize_pem()),
        }
    }
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

fn params(common_name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)
        .unwrap_or_else(|error| panic!("no certificate for {common_name}: {error}"));
    // Replaces the library's default common name.
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}
