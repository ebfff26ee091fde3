//! TLS: trusted authorities, the client certificate, and the meaning of handshake errors.
//!
//! The broker's certificate is always verified: its authority is trusted, it names the host or
//! address in the URL, and it is in date. No option switches that off. Each connection reads the
//! files again, so certificates can be replaced while the program runs.

use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use jobwire_core::transport::{BadSetting, BrokerSecurity, TransportError};
use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, InconsistentKeys, RootCertStore};
use x509_cert::Certificate;
use x509_cert::der::Decode;

const CA: &str = "broker_tls_ca";
const CERTIFICATE: &str = "broker_tls_certificate";
const KEY: &str = "broker_tls_key";

/// Reads the files and returns the connector. Blocks.
pub(crate) fn connector(security: &BrokerSecurity) -> Result<RustlsConnector, BadSetting> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails if another thread installs a provider at the same moment; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let trust = match &security.ca {
        Some(file) => {
            RustlsConnectorConfig::default().with_parsable_certificates(authorities(file)?)
        }
        None => RustlsConnectorConfig::new_with_platform_verifier(),
    };
    let made = match (&security.certificate, &security.key) {
        (Some(certificate), Some(key)) => {
            let (certificates, private) = identity(certificate, key)?;
            trust.connector_with_single_cert(certificates, private)
        }
        _ => trust.connector_with_no_client_auth(),
    };
    made.map_err(|e| unusable(&e, security))
}

/// Reads the authorities to trust and checks that each is usable.
fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, BadSetting> {
    let authorities = certificates(CA, file)?;
    let mut store = RootCertStore::empty();
    for authority in &authorities {
        store.add(authority.clone()).map_err(|e| {
            bad(
                CA,
                file,
                format!("has a certificate that is not usable as an authority: {e}"),
                "name a PEM file with the authorities' own certificates",
            )
        })?;
    }
    Ok(authorities)
}

/// Reads the client certificate and its key, and checks that the certificate is in date.
fn identity(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), BadSetting> {
    let chain = certificates(CERTIFICATE, certificate)?;
    if let Some(own) = chain.first() {
        in_date(own, certificate)?;
    }
    let text = read(KEY, key)?;
    let private = PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
        let encrypted = text
            .windows(9)
            .any(|part| part.eq_ignore_ascii_case(b"ENCRYPTED"));
        let (problem, remedy) = if encrypted {
            (
                "is encrypted, and encrypted keys are not supported",
                "decrypt it (openssl pkey), and make it readable for this program only",
            )
        } else {
            (
                "has no private key in PEM form",
                "name the file that begins with -----BEGIN PRIVATE KEY-----",
            )
        };
        bad(KEY, key, problem.to_owned(), remedy)
    })?;
    Ok((chain, private))
}

fn certificates(
    setting: &'static str,
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, BadSetting> {
    let text = read(setting, file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(bad(
            setting,
            file,
            "has no certificate in PEM form".to_owned(),
            "name a file that begins with -----BEGIN CERTIFICATE-----",
        )),
    }
}

fn read(setting: &'static str, file: &Path) -> Result<Vec<u8>, BadSetting> {
    std::fs::read(file).map_err(|e| {
        bad(
            setting,
            file,
            format!("can't be read: {e}"),
            "name a file that exists and that this program may read",
        )
    })
}

/// Checks that the certificate is in date. The broker's error would only call it bad.
fn in_date(own: &CertificateDer<'_>, file: &Path) -> Result<(), BadSetting> {
    let unreadable = |e: &dyn std::fmt::Display| {
        bad(
            CERTIFICATE,
            file,
            format!("has a certificate that can't be read: {e}"),
            "have it issued again",
        )
    };
    let parsed = Certificate::from_der(own.as_ref()).map_err(|e| unreadable(&e))?;
    let validity = &parsed.tbs_certificate.validity;
    // If the clock is before 1970, every certificate is not valid yet.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    if validity.not_after.to_unix_duration() < now {
        let since = validity.not_after;
        return Err(bad(
            CERTIFICATE,
            file,
            format!("has a certificate that expired at {since}"),
            "renew it; the next attempt to connect reads it again",
        ));
    }
    if validity.not_before.to_unix_duration() > now {
        let from = validity.not_before;
        return Err(bad(
            CERTIFICATE,
            file,
            format!("has a certificate that is not valid before {from}"),
            "correct this machine's clock, or wait",
        ));
    }
    Ok(())
}

fn bad(setting: &'static str, file: &Path, problem: String, remedy: &str) -> BadSetting {
    BadSetting {
        setting,
        problem: format!("'{}' {problem}", file.display()),
        remedy: remedy.to_owned(),
    }
}

/// Converts the error of making a connector from these files.
fn unusable(error: &io::Error, security: &BrokerSecurity) -> BadSetting {
    let no_file = Path::new("").to_path_buf();
    let key = security.key.as_ref().unwrap_or(&no_file);
    match tls_error(error) {
        Some(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => bad(
            KEY,
            key,
            "is not the key of the certificate in `security.certificate` (setting \
             `broker_tls_certificate`)"
                .to_owned(),
            "name a certificate and its own key; while both files are replaced, wait and retry",
        ),
        // An unsupported kind or form of key. The texts do not repeat the key.
        Some(rustls::Error::General(said)) if security.key.is_some() => bad(
            KEY,
            key,
            format!("can't be used: {said}"),
            "use an RSA, EC (P-256, P-384) or Ed25519 key",
        ),
        _ => BadSetting {
            setting: CA,
            problem: format!("no authority can be trusted: {error}"),
            remedy: "name a PEM file with the authority that signed the broker's certificate, or \
                     install this machine's trust store (ca-certificates)"
                .to_owned(),
        },
    }
}

/// Returns the TLS error that is wrapped in an I/O error.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    let mut inner: &(dyn std::error::Error + 'static) = error.get_ref()?;
    loop {
        if let Some(found) = inner.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        inner = match inner
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(wrapped) => wrapped,
            None => inner.source()?,
        };
    }
}

/// Returns the TLS error that prevents a connection to `place`, with its remedy, if TLS is the
/// reason.
pub(crate) fn explain(
    error: &io::Error,
    place: &str,
    security: &BrokerSecurity,
) -> Option<TransportError> {
    let setting = |setting, problem: &str, remedy: &str| {
        Some(TransportError::Setting(BadSetting {
            setting,
            problem: format!("{place}: {problem}"),
            remedy: remedy.to_owned(),
        }))
    };
    match tls_error(error)? {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer => setting(
                CA,
                "the broker's certificate is signed by no authority that is trusted here",
                "name the PEM file of the authority that signed it in `security.ca` (setting \
                 `broker_tls_ca`), or add that authority to this machine's trust store",
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                setting(
                    "broker_url",
                    &format!(
                        "the broker's certificate is for another host ({})",
                        named(why)
                    ),
                    "write the host as the certificate names it, or have a certificate issued for \
                     this host",
                )
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                refused(place, "the broker's certificate has expired")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                refused(place, "the broker's certificate is not valid yet")
            }
            other => refused(
                place,
                &format!("the broker's certificate is not valid: {other}"),
            ),
        },
        rustls::Error::InvalidMessage(_) => setting(
            "broker_url",
            "the server there does not speak TLS",
            "use the port of the broker's TLS listener (usually 5671), or, for a broker without \
             TLS, amqp://",
        ),
        rustls::Error::AlertReceived(alert) => alerted(*alert, place, security),
        other => refused(place, &format!("TLS failed: {other}")),
    }
}

fn refused(place: &str, problem: &str) -> Option<TransportError> {
    Some(TransportError::Refused {
        problem: format!("{place}: {problem}"),
        remedy: "give the broker a certificate that is in date and meant for servers, and check \
                 this machine's clock"
            .to_owned(),
    })
}

/// Describes the hosts that the certificate names.
fn named(error: &CertificateError) -> String {
    match error {
        CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            format!("it names {}", presented.join(", "))
        }
        _ => "it does not name it".to_owned(),
    }
}

/// Converts the alert by which the broker ended the handshake.
fn alerted(
    alert: AlertDescription,
    place: &str,
    security: &BrokerSecurity,
) -> Option<TransportError> {
    let problem = match (&security.certificate, alert) {
        (
            None,
            AlertDescription::CertificateRequired
            | AlertDescription::HandshakeFailure
            | AlertDescription::BadCertificate
            | AlertDescription::AccessDenied,
        ) => "is missing: the broker asks for a client certificate".to_owned(),
        (
            Some(_),
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::HandshakeFailure
            | AlertDescription::AccessDenied,
        ) => format!("was refused by the broker ({alert:?})"),
        _ => {
            return Some(TransportError::Unreachable(format!(
                "{place}: the broker ended the TLS handshake ({alert:?}); see the broker's log"
            )));
        }
    };
    Some(TransportError::Setting(BadSetting {
        setting: CERTIFICATE,
        problem: format!("{place}: {problem}"),
        remedy: "name a client certificate that is in date and signed by an authority in the \
                 broker's `ssl_options.cacertfile`, and its key in `security.key` (setting \
                 `broker_tls_key`)"
            .to_owned(),
    }))
}
