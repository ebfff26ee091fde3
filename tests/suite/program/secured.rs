//! PostgreSQL on another machine: over verified TLS, or with less where a setting allows it.
//! `0.0.0.0` stands for the other machine: it is no loopback address, and leads to this machine.

use std::sync::{Arc, Mutex};

use jobwire_core::store::postgres::PgOptions;
use jobwire_core::transport::Plaintext;
use jobwire_core::{PgStore, StoreError};
use jobwire_tests::{Authority, Postgres, Scratch};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{fails, jobwire, succeeds};

fn elsewhere(url: &str, parameters: &str) -> String {
    format!("{}{parameters}", url.replace("127.0.0.1", "0.0.0.0"))
}

fn allowing() -> PgOptions {
    let mut options = PgOptions::default();
    options.plaintext = Plaintext::Allow;
    options
}

/// Returns what a client sends to a server that declines TLS, and the client's error.
async fn heard_by_one_that_declines(options: PgOptions) -> (Vec<u8>, StoreError) {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let keeps = heard.clone();
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 8];
            if stream.read_exact(&mut request).await.is_ok() {
                let _ = stream.write_all(b"N").await;
                let mut more = [0; 4096];
                while let Ok(n) = stream.read(&mut more).await
                    && n > 0
                {
                    keeps.lock().unwrap().extend_from_slice(&more[..n]);
                    // AuthenticationCleartextPassword.
                    let _ = stream.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 3]).await;
                }
            }
        }
    });
    let url = format!("postgres://me:hunter2@0.0.0.0:{port}/jobs");
    let mut options = options;
    options.acquire_timeout = std::time::Duration::from_secs(5);
    let refused = PgStore::connect_with(&url, options).await.err().unwrap();
    serving.abort();
    let _ = serving.await;
    let heard = heard.lock().unwrap().clone();
    (heard, refused)
}

#[tokio::test]
async fn a_server_that_declines_tls_is_not_told_the_password() {
    let (heard, refused) = heard_by_one_that_declines(PgOptions::default()).await;
    assert_eq!(heard, b"", "{refused}");
    assert!(refused.to_string().contains("TLS"), "{refused}");
    // With the setting the same server receives the password, so the check above would detect it.
    let (heard, _) = heard_by_one_that_declines(allowing()).await;
    assert!(heard.windows(7).any(|part| part == b"hunter2"));
}

#[tokio::test]
async fn another_machine_is_spoken_to_over_tls_that_is_verified() {
    let authority = Authority::new();
    let named = Postgres::start_with_tls(&authority.server_for(&["0.0.0.0"])).await;
    let url = named.create_database().await;
    let ca = |authority: &Authority| format!("?sslrootcert={}", authority.certificate().display());
    let good = elsewhere(&url, &ca(&authority));
    let store = PgStore::connect(&good).await.unwrap();
    let facts = store.examine().await.unwrap();
    assert!(
        facts
            .encryption
            .is_some_and(|version| version.starts_with("TLS"))
    );
    // A client with a password in its URL connects to no server whose certificate another authority
    // signed or that has another name.
    let stranger = elsewhere(&url, &ca(&Authority::new()));
    assert!(PgStore::connect(&stranger).await.is_err());
    let other = Postgres::start_with_tls(&authority.server_for(&["db.example.org"])).await;
    let misnamed = elsewhere(&other.url("postgres"), &ca(&authority));
    assert!(PgStore::connect(&misnamed).await.is_err());
    assert!(PgStore::connect_with(&misnamed, allowing()).await.is_ok());

    let home = Scratch::new();
    let doctor = |url: &str| jobwire(&home, &["doctor", "--database", url]);
    succeeds(jobwire(&home, &["migrate", "up", "--database", &good])).await;
    let said = succeeds(doctor(&good)).await;
    assert!(said.contains("encryption: TLS"), "{said}");
}

#[tokio::test]
async fn less_than_verified_tls_to_another_machine_is_refused_before_anything_is_sent() {
    let home = Scratch::new();
    let run = |url: &str| jobwire(&home, &["jobs", "list", "--database", url]);
    for (url, parts) in [
        (
            "postgres://bob:hunter2@db.example.org/jobs?sslmode=disable",
            &["db.example.org", "verify-full", "`database_plaintext`"][..],
        ),
        (
            "postgres://bob:hunter2@db.example.org/jobs?sslmode=require",
            &["sslmode=require", "verify-full"],
        ),
        (
            "postgres://bob:hunter2@localhost/jobs?sslmod=verify-full",
            &["`sslmod`", "sslmode"],
        ),
    ] {
        let said = fails(run(url), 2).await;
        for part in parts {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[tokio::test]
async fn a_setting_lets_a_trusted_network_do_without_tls_and_the_doctor_says_so() {
    let plain = Postgres::start().await;
    let url = elsewhere(&plain.create_database().await, "");
    let home = Scratch::new();
    let refused = fails(jobwire(&home, &["migrate", "up", "--database", &url]), 1).await;
    assert!(refused.contains("TLS"), "{refused}");
    let allowed = |arguments: &[&str]| {
        jobwire(&home, arguments)
            .env("JOBWIRE_DATABASE_URL", &url)
            .env("JOBWIRE_DATABASE_PLAINTEXT", "allow")
    };
    succeeds(allowed(&["migrate", "up"])).await;
    let said = succeeds(allowed(&["doctor"])).await;
    assert!(
        said.contains("not encrypted") && said.contains("verify-full"),
        "{said}"
    );
}
