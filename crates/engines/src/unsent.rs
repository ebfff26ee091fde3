//! The reason why a request did not reach the engine, with the remedy if TLS is the reason.

use std::error::Error;
use std::io;

use rustls::CertificateError;

/// Returns the error and its causes, and the remedy if the TLS handshake failed.
pub(crate) fn reason(error: &(dyn Error + 'static)) -> String {
    let text = causes(error);
    match tls_error(error).and_then(remedy) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}

/// Returns the error and its causes.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

/// Returns the TLS error among the causes. `source` alone does not find it: an I/O error does not
/// return the error that it wraps as its source.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut cause = error;
    loop {
        if let Some(found) = cause.downcast_ref() {
            return Some(found);
        }
        let wrapped = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        cause = match wrapped {
            Some(wrapped) => wrapped,
            None => cause.source()?,
        };
    }
}

fn remedy(error: &rustls::Error) -> Option<&'static str> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => Some(
            "the authority that signed the engine's certificate is not trusted here: add it to this \
             machine's trust store, or start the node with its PEM file in the environment variable \
             `SSL_CERT_FILE`",
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => Some(
            "the engine's certificate is for another host: write the host in `engine_url` as the \
             certificate names it",
        ),
        rustls::Error::InvalidMessage(_) => Some(
            "the server there does not speak TLS: use the engine's port for https in `engine_url`",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the HTTP client reports it: an I/O error within an I/O error.
    fn said(error: rustls::Error) -> String {
        let handshake = io::Error::new(io::ErrorKind::InvalidData, error);
        reason(&io::Error::other(handshake))
    }

    #[test]
    fn a_failed_handshake_names_its_remedy() {
        for (error, part) in [
            (CertificateError::UnknownIssuer, "SSL_CERT_FILE"),
            (CertificateError::NotValidForName, "`engine_url`"),
        ] {
            let said = said(rustls::Error::InvalidCertificate(error));
            assert!(
                said.contains("invalid peer certificate") && said.contains(part),
                "{said}"
            );
        }
        let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        assert!(said(plain).contains("does not speak TLS"));
        let expired = rustls::Error::InvalidCertificate(CertificateError::Expired);
        assert!(!said(expired).contains(';'), "the text says it");
        assert_eq!(reason(&io::Error::other("refused")), "refused");
    }
}
