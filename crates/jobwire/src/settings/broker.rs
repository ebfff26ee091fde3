//! The broker's URL: whether this program was built for it, and what secures it.

use jobwire_core::transport::BadSetting;

use super::Settings;

const FORMS: &str = "write `in-process:`, `amqps://user:password@host:5671/virtual-host`, `amqp://…` or `kafka://…`";

/// The brokers that a program was built for.
#[derive(Clone, Copy, Debug)]
struct Built {
    amqp: bool,
    kafka: bool,
}

const BUILT: Built = Built {
    amqp: cfg!(feature = "amqp"),
    kafka: cfg!(feature = "kafka"),
};

/// What is wrong, with the setting that it is about.
type Wrong = Vec<(&'static str, String)>;

/// Everything about the broker that can't work.
pub(super) fn check(settings: &Settings) -> Wrong {
    let url = &settings.broker_url;
    if let Err(problem) = known(url.scheme(), url.expose(), BUILT) {
        return vec![("broker_url", problem)];
    }
    match url.scheme() {
        "in-process" => settings
            .broker_security()
            .files()
            .into_iter()
            .filter(|(_, file)| file.is_some())
            .map(|(setting, _)| {
                let problem = "has no effect: `broker_url` is `in-process:`, which connects to nothing; leave this setting out";
                (setting, problem.to_owned())
            })
            .collect(),
        #[cfg(feature = "amqp")]
        "amqp" | "amqps" => told(settings.amqp_options().mistakes_with(url.expose())),
        #[cfg(feature = "kafka")]
        "kafka" => told(settings.kafka_options().mistakes_with(url.expose())),
        _ => Vec::new(),
    }
}

/// A library's words, put to the program's settings.
#[cfg_attr(
    not(any(feature = "amqp", feature = "kafka")),
    allow(dead_code, reason = "for brokers that this build lacks")
)]
fn told(mistakes: Vec<BadSetting>) -> Wrong {
    mistakes
        .into_iter()
        .map(|bad| (bad.setting, format!("{}; {}", bad.problem, bad.remedy)))
        .collect()
}

/// Is it a broker that this program can use?
fn known(scheme: &str, url: &str, built: Built) -> Result<(), String> {
    let lacks = |broker: &str, feature: &str| {
        Err(format!(
            "this program was built without {broker}; use one that was built with the feature \
             `{feature}` (on by default), or another broker"
        ))
    };
    match scheme {
        "in-process" if url == "in-process:" => Ok(()),
        "amqp" | "amqps" if built.amqp => Ok(()),
        "amqp" | "amqps" => lacks("RabbitMQ", "amqp"),
        "kafka" if built.kafka => Ok(()),
        "kafka" => lacks("Kafka", "kafka"),
        "" | "in-process" => Err(format!("is not a broker's URL; {FORMS}")),
        other => Err(format!(
            "`{other}` is no broker that this program knows; {FORMS}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_lacks_is_named_with_its_feature() {
        let nothing = Built {
            amqp: false,
            kafka: false,
        };
        for (url, feature) in [
            ("amqp://mq", "`amqp`"),
            ("amqps://mq", "`amqp`"),
            ("kafka://k1", "`kafka`"),
        ] {
            let (scheme, _) = url.split_once(':').expect("a scheme");
            let problem = known(scheme, url, nothing).expect_err("not built in");
            assert!(
                problem.contains("built without") && problem.contains(feature),
                "{problem}"
            );
        }
        assert!(known("in-process", "in-process:", nothing).is_ok());
    }
}
