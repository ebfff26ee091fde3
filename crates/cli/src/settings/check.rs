//! Checks settings that are valid one by one: ranges, forms, and settings that contradict each
//! other.

use std::time::Duration;

use jobwire_core::StoreError;
use jobwire_core::store::postgres::address::connect_options;
use jobwire_core::transport::Plaintext;
use tracing_subscriber::filter::LevelFilter;

use super::{AllowList, Mistake, SecretUrl, Settings, broker};

/// Returns all mistakes.
pub(super) fn check(settings: &Settings) -> Vec<Mistake> {
    let mut wrong: Vec<(&'static str, String)> = Vec::new();
    if let Err(problem) = database(&settings.database_url, settings.database_plaintext) {
        wrong.push(("database_url", problem));
    }
    wrong.extend(broker::check(settings));
    if let Err(options) = settings.node_options().validate() {
        wrong.extend(options.into_iter().map(|bad| (bad.option, bad.problem)));
    }
    if settings.statement_timeout < Duration::from_millis(100) {
        wrong.push(("statement_timeout", "must be at least 100ms".to_owned()));
    }
    if let Err(bad) = AllowList::parse(&settings.http_allow_hosts) {
        wrong.push(("http_allow_hosts", bad.to_string()));
    }
    let example = "write, for example, `info` or `warn,jobwire_core=debug`";
    if let Err(error) = tracing_subscriber::EnvFilter::builder().parse(&settings.log) {
        wrong.push(("log", format!("is not a log filter ({error}); {example}")));
    } else if let Some(word) = not_a_level(&settings.log) {
        wrong.push((
            "log",
            format!("`{word}` is not a level (error, warn, info, debug, trace, off); {example}"),
        ));
    }
    wrong.extend(super::engine::check(settings));
    #[cfg(feature = "amqp")]
    wrong.extend(amqp(settings));
    let shown = settings.shown();
    wrong
        .into_iter()
        .map(|(key, problem)| Mistake {
            setting: key.to_owned(),
            value: shown
                .iter()
                .find(|(s, _)| s.key == key)
                .map(|(_, value)| value.clone()),
            origin: settings.origin(key),
            problem,
        })
        .collect()
}

/// Returns the filter if it is one word and not a level. Such a filter names a module and silences
/// all others; usually it is a misspelt level.
fn not_a_level(filter: &str) -> Option<&str> {
    let word = filter.trim();
    let plain = word.chars().all(|letter| letter.is_ascii_alphabetic());
    (plain && word.parse::<LevelFilter>().is_err()).then_some(word)
}

fn database(url: &SecretUrl, plaintext: Plaintext) -> Result<(), String> {
    let forms = "write `sqlite:PATH` or `postgres://user:password@host:5432/database`";
    match url.scheme() {
        "sqlite" => Ok(()),
        "postgres" | "postgresql" => match connect_options(url.expose(), plaintext) {
            Ok(_) => Ok(()),
            Err(StoreError::Config(problem)) => Err(problem),
            Err(error) => Err(error.to_string()),
        },
        "" => Err(format!("is not a URL; {forms}")),
        other => Err(format!("`{other}` is not a supported database; {forms}")),
    }
}

/// Checks each of the transport's settings alone, so that each mistake is reported for the right
/// setting.
#[cfg(feature = "amqp")]
fn amqp(settings: &Settings) -> Vec<(&'static str, String)> {
    use jobwire_amqp::AmqpOptions;
    let given = settings.amqp_options();
    let alone = [
        ("amqp_prefix", AmqpOptions::default().prefix(given.prefix)),
        (
            "amqp_hints_per_message",
            AmqpOptions::default().hints_per_message(given.hints_per_message),
        ),
        (
            "amqp_confirm_timeout",
            AmqpOptions::default().confirm_timeout(given.confirm_timeout),
        ),
        (
            "broker_statistics_interval",
            AmqpOptions::default().statistics_interval(given.statistics_interval),
        ),
    ];
    alone
        .into_iter()
        .flat_map(|(key, options)| options.mistakes().into_iter().map(move |m| (key, m)))
        .collect()
}
