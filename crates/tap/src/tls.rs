//! TLS of a connection: the trusted authorities and the verification.
//!
//! The modes mean the same as in sqlx, which makes the other connections of the program. Trusted
//! are the authorities of this machine and those of the address. An IP address is verified like a
//! name. Files are read again for each connection, so that certificates can be replaced while the
//! program runs.

use std::fmt::Display;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::address::{Pem, Tls, TlsMode};
use crate::error::TapError;

/// Encrypts a connection to this host, for which the server has agreed to TLS.
pub(crate) async fn encrypt(
    tcp: TcpStream,
    host: &str,
    tls: &Tls,
) -> Result<TlsStream<TcpStream>, TapError> {
    let tls = tls.clone();
    // Reads files.
    let config = tokio::task::spawn_blocking(move || config(&tls))
        .await
        .map_err(|error| TapError::Tls(error.to_string()))??;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| TapError::Tls(format!("the host cannot be verified: {error}")))?;
    TlsConnector::from(Arc::new(config))
        .connect(name, tcp)
        .await
        .map_err(|error| TapError::Tls(error.to_string()))
}

fn config(tls: &Tls) -> Result<ClientConfig, TapError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(unusable("TLS"))?;
    let config = match tls.mode {
        TlsMode::VerifyFull => config.with_root_certificates(authorities(tls)?),
        TlsMode::VerifyCa => {
            let roots = Arc::new(authorities(tls)?);
            let inner = WebPkiServerVerifier::builder_with_provider(roots, provider)
                .build()
                .map_err(unusable("the trusted authorities"))?;
            config
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyName(inner)))
        }
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
    };
    match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&read(key)?)
                .map_err(unusable("the key of the client certificate"))?;
            config
                .with_client_auth_cert(certificates(certificate)?, key)
                .map_err(unusable("the client certificate"))
        }
        (None, None) => Ok(config.with_no_client_auth()),
        _ => Err(TapError::Tls(
            "give the client certificate and its key together, or neither".to_owned(),
        )),
    }
}

fn authorities(tls: &Tls) -> Result<RootCertStore, TapError> {
    let mut roots = RootCertStore::empty();
    let machine = rustls_native_certs::load_native_certs();
    for error in machine.errors {
        tracing::debug!(%error, "an authority of this machine cannot be read");
    }
    roots.add_parsable_certificates(machine.certs);
    if let Some(root) = &tls.root {
        for certificate in certificates(root)? {
            roots.add(certificate).map_err(unusable("the authority"))?;
        }
    }
    Ok(roots)
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, TapError> {
    let text = read(pem)?;
    CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(unusable("a certificate"))
}

fn read(pem: &Pem) -> Result<Vec<u8>, TapError> {
    match pem {
        Pem::Text(text) => Ok(text.clone().into_bytes()),
        Pem::File(path) => std::fs::read(path)
            .map_err(|error| TapError::Tls(format!("cannot read {}: {error}", path.display()))),
    }
}

fn unusable<E: Display>(what: &'static str) -> impl Fn(E) -> TapError {
    move |error| TapError::Tls(format!("{what} cannot be used: {error}"))
}

/// Accepts every certificate. It still checks the signatures of the handshake.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts every certificate that a trusted authority has signed, for any host.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self
            .0
            .verify_server_cert(certificate, chain, name, ocsp, now)
        {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
