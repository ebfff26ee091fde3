//! Payloads are encrypted in the database: the client seals them, the node opens them before the
//! handler. The key changes in between, and both keys go on working.
//!
//! ```sh
//! cargo run -p jobwire --features sqlite --example encryption -- sqlite:encryption.db
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use jobwire::{
    Ciphertext, CommitHook, Encryption, Error, HookOptions, InProcessTransport, JobQuery, NewJob,
    Node, NodeOptions, Outcome, PayloadCipher, Running, SealedIn, SqliteStore, Transport,
};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::mpsc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// AES-256-GCM with several keys. The newest one encrypts, all of them decrypt.
pub(crate) struct AesGcm {
    keys: BTreeMap<String, LessSafeKey>,
    random: SystemRandom,
}

impl AesGcm {
    /// Creates the cipher from keys of 32 bytes. The one with the largest id is the newest.
    pub(crate) fn new<'a>(keys: impl IntoIterator<Item = (&'a str, [u8; 32])>) -> Result<Self> {
        let key = |(id, bytes): (&str, [u8; 32])| {
            let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| "not a key")?;
            Ok((id.to_owned(), LessSafeKey::new(key)))
        };
        Ok(Self {
            keys: keys.into_iter().map(key).collect::<Result<_>>()?,
            random: SystemRandom::new(),
        })
    }
}

impl PayloadCipher for AesGcm {
    fn encrypt(
        &self,
        place: &SealedIn<'_>,
        plain: &[u8],
    ) -> std::result::Result<Ciphertext, Error> {
        let (id, key) = self.keys.last_key_value().ok_or("there is no key")?;
        let mut nonce = [0; NONCE_LEN];
        self.random
            .fill(&mut nonce)
            .map_err(|_| "no random bytes")?;
        let mut sealed = plain.to_vec();
        let aad = Aad::from(place.associated_data());
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .map_err(|_| "the payload is too large")?;
        Ok(Ciphertext {
            key: id.clone(),
            data: [&nonce[..], &sealed].concat(),
        })
    }

    fn decrypt(
        &self,
        place: &SealedIn<'_>,
        sealed: &Ciphertext,
    ) -> std::result::Result<Vec<u8>, Error> {
        let key = self
            .keys
            .get(&sealed.key)
            .ok_or("this key is not known here")?;
        let (nonce, data) = sealed.data.split_at_checked(NONCE_LEN).ok_or("too short")?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| "no nonce")?;
        let mut data = data.to_vec();
        let aad = Aad::from(place.associated_data());
        let plain = key.open_in_place(nonce, aad, &mut data);
        Ok(plain.map_err(|_| "the data was changed")?.to_vec())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let usage = "usage: encryption sqlite:FILE";
    let database = std::env::args().nth(1).ok_or(usage)?;
    for (card, key) in run(&database).await? {
        println!("{card}: {}", key.unwrap_or_else(|| "plaintext".to_owned()));
    }
    Ok(())
}

/// Returns the payload of each job as its handler got it, and the key that the row named.
pub(crate) async fn run(database: &str) -> Result<Vec<(String, Option<String>)>> {
    let store = SqliteStore::connect(database).await?;
    store.migrate().await?;
    let transport = InProcessTransport::new();
    let hook = CommitHook::start(transport.publisher(), HookOptions::default());

    // Real keys come from a key management service. The old one has sealed a job; then the key
    // changes, and clients that know both seal with the new one.
    let old = || AesGcm::new([("2026-10", [7; 32])]);
    let both = || AesGcm::new([("2026-10", [7; 32]), ("2026-11", [8; 32])]);
    let client = store.client(hook.clone());
    client
        .clone()
        .encrypting(Encryption::new(old()?))
        .create(NewJob::of("charge", "card-1"))
        .await?;
    client
        .clone()
        .encrypting(Encryption::new(both()?))
        .create(NewJob::of("charge", "card-2"))
        .await?;
    // A client without encryption, or plain SQL.
    client.create(NewJob::of("charge", "card-3")).await?;

    let mut keys = Vec::new();
    for view in client.list(&JobQuery::default()).await? {
        let details = client.get(view.id).await?.ok_or("the job is gone")?;
        keys.push(details.job.payload_key());
    }

    let (done, mut cards) = mpsc::unbounded_channel();
    let encryption = Encryption::new(both()?);
    let node = Node::builder(store, Arc::new(transport))
        .hook(hook)
        .options(NodeOptions::default().encryption(Some(encryption)))
        .handler("charge", move |job: Running<String>| {
            let done = done.clone();
            async move {
                done.send((job.job.seq, job.payload))?;
                Ok(Outcome::Done)
            }
        })
        .start()
        .await?;
    let mut charged = Vec::new();
    while charged.len() < keys.len() {
        charged.push(cards.recv().await.ok_or("the node has stopped")?);
    }
    node.stop().await;
    charged.sort();
    let cards = charged.into_iter().map(|(_, card)| card);
    Ok(cards.zip(keys).collect())
}
