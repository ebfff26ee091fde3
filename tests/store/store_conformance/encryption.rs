//! Payloads that a client seals and a node opens.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::job::periodic::Declared;
use jobwire_core::{
    Ciphertext, Client, CommitHook, Encryption, Error, HandlerOptions, HookOptions,
    InProcessTransport, JobId, JobState, NewJob, Node, Outcome, PayloadCipher, PeriodicJob,
    RetryPolicy, Running, SealedIn, Transport,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{Notes, SOON, quick};
use serde_json::json;

use super::world::{SqlBench, World};

/// Knows keys by their numbers, and encrypts with the largest. It only hides the text;
/// `examples/encryption.rs` has a real one.
#[derive(Clone)]
struct Keys(Vec<u8>);

impl PayloadCipher for Keys {
    fn encrypt(&self, place: &SealedIn<'_>, plain: &[u8]) -> Result<Ciphertext, Error> {
        let key = self.0.iter().max().ok_or("no key")?;
        let aad = place.associated_data();
        let data = [&(aad.len() as u64).to_be_bytes()[..], &aad, plain].concat();
        let hidden: Vec<u8> = data.iter().map(|byte| byte ^ key).collect();
        // Like a nonce: no two ciphertexts are the same.
        let nonce = uuid::Uuid::new_v4();
        Ok(Ciphertext {
            key: key.to_string(),
            data: [&nonce.as_bytes()[..], &hidden].concat(),
        })
    }

    fn decrypt(&self, place: &SealedIn<'_>, sealed: &Ciphertext) -> Result<Vec<u8>, Error> {
        let key: u8 = sealed.key.parse()?;
        if !self.0.contains(&key) {
            return Err("unknown key".into());
        }
        let hidden = sealed.data.get(16..).ok_or("no nonce")?;
        let data: Vec<u8> = hidden.iter().map(|byte| byte ^ key).collect();
        let aad = place.associated_data();
        let begin = [&(aad.len() as u64).to_be_bytes()[..], &aad].concat();
        let plain = data.strip_prefix(&*begin).ok_or("of another place")?;
        Ok(plain.to_vec())
    }
}

fn keys(keys: &[u8]) -> Encryption {
    Encryption::new(Keys(keys.to_vec()))
}

struct Bed<S: SqlBench> {
    transport: InProcessTransport,
    hook: CommitHook,
    client: Client<S>,
    notes: Notes,
}

impl<S: SqlBench> Bed<S> {
    fn new(w: &World<S>) -> Self {
        let transport = InProcessTransport::new();
        let hook = CommitHook::start(transport.publisher(), HookOptions::default());
        Self {
            client: Client::new(w.store.clone(), hook.clone()),
            transport,
            hook,
            notes: Notes::default(),
        }
    }

    /// Starts a node whose handlers note the payload: `note` alone, `twice` with the checkpoint of
    /// the first attempt, `parent` creates a `note` in its transaction.
    async fn node(&self, w: &World<S>, encryption: Option<Encryption>) -> Node {
        let noting = |of: &'static str| {
            let notes = self.notes.clone();
            move |job: Running<String>| {
                let notes = notes.clone();
                async move {
                    notes.add(format!("{of} {}", job.payload));
                    Ok(Outcome::Done)
                }
            }
        };
        let notes = self.notes.clone();
        let twice = move |job: Running<String>| {
            let notes = notes.clone();
            async move {
                if let Some(saved) = job.checkpoint::<String>().await? {
                    notes.add(format!("twice {saved}"));
                    return Ok(Outcome::Done);
                }
                job.save_checkpoint(&format!("after {}", job.payload))
                    .await?;
                Err("again".into())
            }
        };
        let parent = |job: Running<String>| async move {
            let mut tx = job.transaction::<S>().await?;
            tx.create(NewJob::of("note", &format!("child of {}", job.payload)))
                .await?;
            Ok(Outcome::Done)
        };
        let at_once = HandlerOptions::default().retry(RetryPolicy::fixed(Duration::ZERO));
        Node::builder(w.store.clone(), Arc::new(self.transport.clone()))
            .options(quick().encryption(encryption))
            .hook(self.hook.clone())
            .handler_with("note", at_once.clone(), noting("note"))
            .handler_with("twice", at_once.clone(), twice)
            .handler_with("parent", HandlerOptions::default().in_transaction(), parent)
            .start()
            .await
            .unwrap()
    }
}

/// Returns the text of the payload as the row has it, and of the checkpoint.
async fn stored<S: SqlBench>(w: &World<S>, id: JobId) -> String {
    let (_, job, _) = w.store.get(id).await.unwrap().unwrap();
    let checkpoint = w.store.checkpoint(id).await.unwrap();
    format!("{} {}", job.payload, checkpoint.unwrap_or_default())
}

pub(super) async fn a_sealed_payload_is_opened_for_its_handler_alone<S: SqlBench>(w: &World<S>) {
    let bed = Bed::new(w);
    let client = bed.client.clone().encrypting(keys(&[1]));
    let node = bed.node(w, Some(keys(&[1, 2]))).await;
    // It waits, so that its row can be read.
    let later = NewJob::of("note", "secret").delay(Duration::from_secs(3_600));
    let id = client.create(later).await.unwrap();
    let text = stored(w, id).await;
    assert!(
        !text.contains("secret") && text.contains(r#""key":"1""#),
        "{text}"
    );
    let details = client.get(id).await.unwrap().unwrap();
    assert_eq!(details.job.payload_key().as_deref(), Some("1"));
    let plain = keys(&[1]).open_job(&details.job).unwrap();
    assert_eq!(plain.payload.get(), r#""secret""#);
    client.retry(id, 3).await.unwrap();
    assert_eq!(bed.notes.until(1).await, ["note secret"]);
    // By a hook in a transaction of the application; by the newest key in that of a handler.
    let mut tx = bed.client.begin().await.unwrap();
    let mut hook = client.hook();
    hook.create(&mut tx, NewJob::of("parent", "two"))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    hook.fire();
    assert_eq!(bed.notes.until(2).await[1], "note child of two");
    // Plaintext of plain SQL runs, too.
    w.store
        .put("job", &[("type", "'note'"), ("payload", "'\"plain\"'")])
        .await
        .unwrap();
    assert_eq!(bed.notes.until(3).await[2], "note plain");
    node.stop().await;
}

pub(super) async fn a_checkpoint_and_an_occurrence_stay_sealed<S: SqlBench>(w: &World<S>) {
    let bed = Bed::new(w);
    let client = bed.client.clone().encrypting(keys(&[1]));
    let repeating = NewJob::of("note", "secret").repeat_text("R2/PT1H");
    let repeats = repeating.id();
    client.create(repeating).await.unwrap();
    let node = bed.node(w, Some(keys(&[1]))).await;
    assert_eq!(bed.notes.until(1).await, ["note secret"]);
    let next = eventually("the next occurrence", SOON, async || {
        let filter = jobwire_core::JobQuery::default().correlation_id(repeats.uuid());
        let found = w.find(filter).await;
        found.into_iter().find(|id| *id != repeats)
    })
    .await;
    let text = stored(w, next).await;
    assert!(
        !text.contains("secret") && text.contains("$sealed"),
        "{text}"
    );
    client.retry(next, 3).await.unwrap();
    assert_eq!(bed.notes.until(2).await[1], "note secret");
    // The first attempt saves a checkpoint, the second one reads it.
    let id = client.create(NewJob::of("twice", "secret")).await.unwrap();
    let seen = eventually("a checkpoint, or its end", SOON, async || {
        match w.store.checkpoint(id).await.unwrap() {
            Some(text) => Some(text),
            None => (bed.notes.all().len() == 3).then(String::new),
        }
    })
    .await;
    assert!(!seen.contains("secret"), "{seen}");
    assert_eq!(bed.notes.until(3).await[2], "twice after secret");
    node.stop().await;
}

pub(super) async fn a_periodic_job_is_sealed_and_the_same_when_it_is_declared_again<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let declare = async |encryption: Encryption, payload: &str| {
        let job = NewJob::of("note", payload)
            .custom_values(serde_json::value::to_raw_value(&json!({"of": payload})).unwrap())
            .tag("nightly");
        let declared = [PeriodicJob::new("nightly", "0 2 * * *", job)];
        let client = bed
            .client
            .clone()
            .encrypting(encryption.and_custom_values());
        let declared = client.declare_periodic_jobs(&declared).await.unwrap()[0];
        let views = client.periodic_jobs().await.unwrap();
        assert!(!views[0].template.contains("secret"), "{views:?}");
        (declared, views[0].template.clone())
    };
    // In plaintext first.
    let open = [PeriodicJob::new(
        "nightly",
        "0 2 * * *",
        NewJob::of("note", "secret"),
    )];
    w.store.declare_periodic_jobs(&open).await.unwrap();
    let (declared, template) = declare(keys(&[1]), "secret").await;
    assert_eq!(declared, Declared::Changed);
    assert_eq!(
        declare(keys(&[1]), "secret").await,
        (Declared::Same, template)
    );
    // With a new key, and with another payload.
    let (declared, template) = declare(keys(&[1, 2]), "secret").await;
    assert_eq!(declared, Declared::Changed);
    assert_eq!(
        declare(keys(&[1, 2]), "secret").await,
        (Declared::Same, template)
    );
    assert_eq!(
        declare(keys(&[2]), "another secret").await.0,
        Declared::Changed
    );
    let node = bed.node(w, Some(keys(&[2]).refuse_plaintext())).await;
    bed.client
        .run_periodic_job("nightly")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(bed.notes.until(1).await, ["note another secret"]);
    node.stop().await;
}

pub(super) async fn a_job_that_can_not_be_opened_is_kept_with_the_reason<S: SqlBench>(
    w: &World<S>,
) {
    let dead = async |id: JobId| {
        eventually("a dead letter", SOON, async || {
            (w.state(id).await? == JobState::DeadLetter).then_some(())
        })
        .await;
        w.view(id).await.unwrap().exception_message.unwrap()
    };
    let client = Bed::new(w).client.encrypting(keys(&[9]));
    let job = NewJob::of("note", "secret").max_attempts(2);
    let id = client.create(job).await.unwrap();
    // A node closes its hook when it stops.
    let bed = Bed::new(w);
    let node = bed.node(w, Some(keys(&[1]))).await;
    bed.client.retry(id, 2).await.unwrap();
    let said = dead(id).await;
    node.stop().await;
    assert!(
        said.contains("with key `9`: unknown key") && !said.contains("secret"),
        "{said}"
    );
    assert!(bed.notes.all().is_empty());
    // A node without a cipher returns it, without an attempt.
    let bed = Bed::new(w);
    let node = bed.node(w, None).await;
    bed.client.retry(id, 2).await.unwrap();
    eventually("the job to be returned", SOON, async || {
        (w.state(id).await? == JobState::Timer).then_some(())
    })
    .await;
    node.stop().await;
    assert_eq!(w.view(id).await.unwrap().retries, 2);
    assert!(bed.notes.all().is_empty());
    let bed = Bed::new(w);
    let node = bed.node(w, Some(keys(&[9, 10]))).await;
    bed.client.retry(id, 2).await.unwrap();
    assert_eq!(bed.notes.until(1).await, ["note secret"]);
    node.stop().await;
    // The message of a payload of another type tells no value.
    let bed = Bed::new(w);
    let client = bed.client.clone().encrypting(keys(&[9]));
    let node = bed.node(w, Some(keys(&[9]))).await;
    let number = NewJob::of("note", &4_111_111);
    let said = dead(client.create(number).await.unwrap()).await;
    node.stop().await;
    assert!(
        said.contains("another value is expected at line 1") && !said.contains("4111111"),
        "{said}"
    );
    // A node that refuses plaintext keeps it as a dead letter.
    let bed = Bed::new(w);
    let node = bed.node(w, Some(keys(&[9]).refuse_plaintext())).await;
    let open = NewJob::of("note", "open").max_attempts(1);
    let said = dead(bed.client.create(open).await.unwrap()).await;
    node.stop().await;
    assert!(said.contains("is not encrypted"), "{said}");
    assert!(bed.notes.all().is_empty());
}
