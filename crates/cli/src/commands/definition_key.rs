//! The key of a process definition, with its tenant, as the scope of a command.

use jobwire_core::job::definition_key::DefinitionKey;
use jobwire_core::telemetry::plain;
use jobwire_core::{JobQuery, Store, TextField, TextMatch};

use crate::error::Error;
use crate::output;

/// Reads `--definition-key`, or another flag that takes a key, and `--tenant`.
pub(super) fn given(
    flag: &str,
    key: String,
    tenant: Option<String>,
) -> Result<DefinitionKey, Error> {
    let key =
        DefinitionKey::new(key).map_err(|invalid| Error::Usage(format!("--{flag}: {invalid}")))?;
    let Some(tenant) = tenant else {
        return Ok(key);
    };
    if tenant.is_empty() || tenant.len() > 1024 {
        return Err(Error::Usage(format!(
            "--tenant has {} bytes; give a name of 1 to 1024, or leave it out for the definitions \
             without a tenant",
            tenant.len()
        )));
    }
    Ok(key.of_tenant(tenant))
}

/// Limits a query to the jobs of a key.
pub(super) fn query(query: JobQuery, key: &DefinitionKey) -> JobQuery {
    let tenant = match key.tenant() {
        Some(tenant) => TextMatch::OneOf(vec![tenant.to_owned()]),
        None => TextMatch::OneOfOrMissing(vec![String::new()]),
    };
    query
        .definition_key(key.key())
        .text(TextField::Tenant, tenant)
}

/// Returns the filters of `jobs list` that show the jobs of a key.
pub(super) fn filters(key: &DefinitionKey) -> String {
    let tenant = match key.tenant() {
        Some(tenant) => output::shell_option("tenant", tenant),
        None => "--without-tenant".to_owned(),
    };
    format!(
        "{} {tenant}",
        output::shell_option("definition-key", key.key())
    )
}

/// Prints a remark if a key that had no job has some of another tenant.
pub(super) async fn other_tenant(store: &dyn Store, key: &DefinitionKey) -> Result<(), Error> {
    let any = JobQuery::default().definition_key(key.key()).limit(1);
    let found = store.find(&any).await?;
    let Some(job) = found.first() else {
        return Ok(());
    };
    let whose = match job.tenant.as_deref().filter(|tenant| !tenant.is_empty()) {
        Some(tenant) => format!(
            "of tenant `{}` exist; give --tenant",
            plain::one_line(tenant, 200)
        ),
        None => "without a tenant exist; leave --tenant out".to_owned(),
    };
    if key.covers(job.process_definition.as_deref(), job.tenant.as_deref()) {
        return Ok(());
    }
    let key = plain::one_line(key.key(), 200);
    output::line(format_args!("remark: jobs of the key `{key}` {whose}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_its_tenant_are_checked() {
        let key = |tenant: Option<&str>| {
            given(
                "definition-key",
                "invoice".to_owned(),
                tenant.map(str::to_owned),
            )
        };
        assert_eq!(
            filters(&key(None).expect("a key")),
            "--definition-key invoice --without-tenant"
        );
        let acme = key(Some("acme")).expect("a key");
        assert_eq!(filters(&acme), "--definition-key invoice --tenant acme");
        let said = key(Some("")).expect_err("no tenant").to_string();
        assert!(said.contains("--tenant has 0 bytes"), "{said}");
        let said = given("definition-key", "invoice:3:4711".to_owned(), None);
        let said = said.expect_err("an id").to_string();
        assert!(said.contains("--definition-key: field"), "{said}");
        assert!(said.contains("has no colon: `invoice`"), "{said}");
    }
}
