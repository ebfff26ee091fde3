//! The login: SCRAM-SHA-256, MD5, a password in the clear, or none.

use md5::{Digest, Md5};
use pgwire_replication::auth::ScramClient;
use pgwire_replication::protocol::framing::write_password_message;
use pgwire_replication::protocol::messages::{auth, parse_auth_request};

use crate::address::Address;
use crate::error::TapError;
use crate::messages::Messages;

const SCRAM: &str = "SCRAM-SHA-256";
const SASL_CONTINUE: i32 = auth::SASL_CONTINUE;
const SASL_FINAL: i32 = auth::SASL_FINAL;
/// Maximum number of rounds of hashing that a server may ask for. PostgreSQL's default is 4,096.
const ROUNDS: u32 = 1_000_000;

/// Answers the server's requests until it is ready for a statement.
pub(crate) async fn log_in(messages: &mut Messages, address: &Address) -> Result<(), TapError> {
    loop {
        let message = messages.next().await?;
        match message.tag {
            b'R' => {
                let (code, data) = parse_auth_request(&message.payload)?;
                answer(messages, address, code, data).await?;
            }
            b'Z' => return Ok(()),
            // A parameter of the server, the key for cancels, or a notice.
            _ => {}
        }
    }
}

async fn answer(
    messages: &mut Messages,
    address: &Address,
    code: i32,
    data: &[u8],
) -> Result<(), TapError> {
    let password = || {
        let password = address.password.as_deref();
        password.ok_or_else(|| TapError::Login("it asks for a password".to_owned()))
    };
    match code {
        auth::OK => Ok(()),
        auth::CLEARTEXT_PASSWORD => {
            write_password_message(messages.stream(), &terminated(password()?)).await?;
            Ok(())
        }
        auth::MD5_PASSWORD => {
            let hash = md5_of(password()?, &address.user, data);
            write_password_message(messages.stream(), &terminated(&hash)).await?;
            Ok(())
        }
        auth::SASL => scram(messages, &address.user, password()?, data).await,
        other => Err(TapError::Login(format!(
            "it asks for method {other}, which is not supported; use scram-sha-256"
        ))),
    }
}

fn terminated(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// Returns the answer to a request for an MD5 password: two rounds, the second with the salt.
fn md5_of(password: &str, user: &str, salt: &[u8]) -> String {
    let inner = hex(&Md5::new()
        .chain_update(password)
        .chain_update(user)
        .finalize());
    let outer = hex(&Md5::new().chain_update(inner).chain_update(salt).finalize());
    format!("md5{outer}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn scram(
    messages: &mut Messages,
    user: &str,
    password: &str,
    offered: &[u8],
) -> Result<(), TapError> {
    if !offered
        .split(|byte| *byte == 0)
        .any(|name| name == SCRAM.as_bytes())
    {
        return Err(TapError::Login(format!("it does not offer {SCRAM}")));
    }
    let client = ScramClient::new(user);
    let first = client.client_first.as_bytes();
    let length = u32::try_from(first.len())
        .map_err(|_| TapError::Setting("the user's name is too long".to_owned()))?;
    let mut initial = terminated(SCRAM);
    initial.extend(length.to_be_bytes());
    initial.extend(first);
    write_password_message(messages.stream(), &initial).await?;

    let challenge = said(messages, SASL_CONTINUE).await?;
    let (_, _, rounds) = ScramClient::parse_server_first(&challenge)?;
    if rounds > ROUNDS {
        return Err(TapError::Login(format!(
            "it asks for {rounds} rounds of hashing, and {ROUNDS} are allowed"
        )));
    }
    let (last, exchange, salted) = client.client_final(password, &challenge)?;
    write_password_message(messages.stream(), last.as_bytes()).await?;

    // The last message proves that the server has the password, too.
    let verdict = said(messages, SASL_FINAL).await?;
    Ok(ScramClient::verify_server_final(
        &verdict, &salted, &exchange,
    )?)
}

/// Returns the server's next text of the exchange.
async fn said(messages: &mut Messages, expected: i32) -> Result<String, TapError> {
    loop {
        let message = messages.next().await?;
        if message.tag != b'R' {
            continue;
        }
        let (code, data) = parse_auth_request(&message.payload)?;
        if code != expected {
            return Err(TapError::Protocol(format!(
                "step {code} of the login came instead of step {expected}"
            )));
        }
        return Ok(String::from_utf8_lossy(data).into_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_md5_password_is_hashed_with_the_user_and_the_salt() {
        // Computed with PostgreSQL's own function: md5(md5('secret' || 'tap') || 'salt').
        assert_eq!(
            md5_of("secret", "tap", b"salt"),
            "md5293885f96ece73ad8ff8fab1f951c913"
        );
    }
}
