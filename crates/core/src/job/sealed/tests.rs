use chrono::Utc;

use super::*;
use crate::job::Lane;

/// Adds the number of the key to each byte, and binds the data to its place by its length. No
/// cipher for anything but a test.
struct Shift(u8);

impl PayloadCipher for Shift {
    fn encrypt(&self, place: &SealedIn<'_>, plain: &[u8]) -> Result<Ciphertext, Error> {
        let mut data: Vec<u8> = plain.iter().map(|b| b.wrapping_add(self.0)).collect();
        data.extend(place.associated_data());
        Ok(Ciphertext {
            key: format!("key-{}", self.0),
            data,
        })
    }

    fn decrypt(&self, place: &SealedIn<'_>, sealed: &Ciphertext) -> Result<Vec<u8>, Error> {
        if sealed.key != format!("key-{}", self.0) {
            return Err("unknown key".into());
        }
        let data = sealed.data.strip_suffix(&*place.associated_data());
        let data = data.ok_or("it belongs to another place")?;
        Ok(data.iter().map(|b| b.wrapping_sub(self.0)).collect())
    }
}

fn job(new: NewJob) -> Job {
    new.into_job(1, Utc::now(), Lane::default()).expect("valid")
}

fn new() -> NewJob {
    let values = RawValue::from_string(r#"{"a":1,"$tags":["x"]}"#.to_owned()).expect("JSON");
    NewJob::of("pay", &"secret")
        .tenant("acme")
        .custom_values(values)
}

#[test]
fn what_is_sealed_names_its_key_and_is_opened_again() {
    let encryption = Encryption::new(Shift(1)).and_custom_values();
    let sealed = job(encryption.seal_job(new()).unwrap());
    assert!(!sealed.payload.get().contains("secret"));
    assert_eq!(sealed.payload_key().as_deref(), Some("key-1"));
    let values = sealed.custom_values.as_ref().unwrap().get();
    assert!(values.contains(r#""$tags":["x"]"#), "{values}");
    let plain = encryption.open_job(&sealed).unwrap();
    assert_eq!(plain.payload.get(), r#""secret""#);
    assert_eq!(plain.payload_key(), None);
    assert_eq!(
        plain.custom_values.unwrap().get(),
        r#"{"a":1,"$tags":["x"]}"#
    );
    // A database may write the envelope with other spaces.
    let mut spaced = sealed.clone();
    let text = spaced
        .payload
        .get()
        .replace("{\"$sealed\":{", "{ \"$sealed\": {");
    spaced.payload = RawValue::from_string(text).unwrap();
    let plain = encryption.open_job(&spaced).unwrap();
    assert_eq!(plain.payload.get(), r#""secret""#);
}

#[test]
fn the_reason_is_told_when_a_payload_can_not_be_opened() {
    let encryption = Encryption::new(Shift(1));
    let mut sealed = job(encryption.seal_job(new()).unwrap());
    let said = |encryption: Option<&Encryption>, job: &Job| {
        opened(encryption, job).map(|_| ()).unwrap_err().to_string()
    };
    assert!(said(None, &sealed).contains("key `key-1`, and this node has no cipher"));
    let other = Encryption::new(Shift(2));
    assert!(said(Some(&other), &sealed).contains("with key `key-1`: unknown key"));
    sealed.tenant = None;
    assert!(said(Some(&encryption), &sealed).contains("belongs to another place"));
    for (envelope, problem) in [
        (r#"{"$sealed":1}"#, "can't be read"),
        (
            r#"{"$sealed":{"v":2,"key":"k","data":""}}"#,
            "its version is 2",
        ),
        (
            r#"{"$sealed":{"v":1,"key":"k","data":"!"}}"#,
            "can't be read",
        ),
    ] {
        sealed.payload = RawValue::from_string(envelope.to_owned()).unwrap();
        let said = said(Some(&encryption), &sealed);
        assert!(said.contains(problem), "{said}");
    }
}

#[test]
fn plaintext_runs_unless_the_node_refuses_it() {
    let lenient = Encryption::new(Shift(1));
    assert!(opened(Some(&lenient), &job(new())).unwrap().is_none());
    assert!(opened(None, &job(new())).unwrap().is_none());
    let strict = lenient.clone().refuse_plaintext();
    let refused = opened(Some(&strict), &job(new())).unwrap_err();
    assert!(matches!(refused, SealError::Plaintext));
    let empty = job(NewJob::of("pay", &()));
    assert!(opened(Some(&strict), &empty).unwrap().is_none());
    assert!(strict.open_job(&job(new())).is_ok(), "for reading");
}

#[test]
fn a_payload_that_looks_like_an_envelope_is_sealed_like_any_other() {
    let encryption = Encryption::new(Shift(1));
    let text = r#"{"$sealed":{"v":1,"key":"k","data":""}}"#;
    let forged = RawValue::from_string(text.to_owned()).unwrap();
    let sealed = job(encryption
        .seal_job(NewJob::with_json("pay", forged))
        .unwrap());
    assert_eq!(sealed.payload_key().as_deref(), Some("key-1"));
    assert_eq!(encryption.open_job(&sealed).unwrap().payload.get(), text);
}

#[test]
fn no_two_places_have_the_same_bytes() {
    let place = |field, job_type, tenant| SealedIn {
        field,
        job_type,
        tenant,
    };
    let places = [
        place("payload", "ab", None),
        place("payload", "a", Some("b")),
        place("payload", "ab", Some("")),
        place("checkpoint", "ab", None),
    ];
    for (at, one) in places.iter().enumerate() {
        for other in &places[..at] {
            assert_ne!(one.associated_data(), other.associated_data());
        }
    }
}
