use super::*;
use std::path::Path;

use jobwire_core::Limit;

fn load(
    file: &str,
    environment: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Result<Settings, Mistakes> {
    let directory = tempfile::tempdir().expect("a directory");
    if !file.is_empty() {
        std::fs::write(directory.path().join(DEFAULT_FILE), file).expect("written");
    }
    Settings::load(&Sources {
        file: None,
        directory: directory.path().to_owned(),
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        flags: flags
            .iter()
            .map(|(key, value)| (*key, (*value).to_owned()))
            .collect(),
    })
}

fn mistakes(file: &str, environment: &[(&str, &str)], flags: &[(&'static str, &str)]) -> String {
    load(file, environment, flags)
        .expect_err("mistakes")
        .to_string()
}

#[test]
fn defaults_are_those_of_the_table_and_of_the_library() {
    let settings = load("", &[], &[]).expect("defaults work");
    for (setting, shown) in settings.shown() {
        let default = match setting.default {
            // Shown in the largest unit that fits.
            "60s" => "1m",
            "7d" => "168h",
            "30d" => "720h",
            other => other,
        };
        assert_eq!(shown, default, "{}", setting.key);
        assert_eq!(settings.origin(setting.key), Origin::Default);
    }
    let library = jobwire_core::NodeOptions::default();
    let ours = settings.node_options();
    assert_eq!(format!("{ours:?}"), format!("{library:?}"));
    assert_eq!(
        format!("{:?}", settings.pg_options()),
        format!("{:?}", jobwire_core::PgOptions::default())
    );
    #[cfg(feature = "amqp")]
    assert_eq!(
        settings.amqp_options(),
        jobwire_amqp::AmqpOptions::default()
    );
}

#[test]
fn a_flag_beats_the_environment_and_the_environment_beats_the_file() {
    let file = "lease = \"11s\"\nconcurrency = 11\nlanes = [\"a\", \"b\"]\namqp_declare = false\n";
    let environment = [
        ("JOBWIRE_LEASE", "22s"),
        ("JOBWIRE_CONCURRENCY", "22"),
        ("HOME", "/"),
    ];
    let settings = load(file, &environment, &[("lease", "PT33S")]).expect("all is well");
    assert_eq!(settings.lease, Duration::from_secs(33));
    assert_eq!(settings.concurrency, 22);
    assert_eq!(settings.lanes, ["a".into(), "b".into()]);
    assert!(!settings.amqp_declare);
    assert_eq!(settings.origin("lease"), Origin::Flag("lease".to_owned()));
    assert_eq!(
        settings.origin("concurrency"),
        Origin::Environment("JOBWIRE_CONCURRENCY".to_owned())
    );
    assert!(matches!(
        settings.origin("lanes"),
        Origin::File { line: 3, .. }
    ));
}

#[test]
fn an_empty_variable_counts_as_none() {
    let settings = load("", &[("JOBWIRE_LEASE", "")], &[]).expect("all is well");
    assert_eq!(settings.origin("lease"), Origin::Default);
}

#[test]
fn all_mistakes_are_reported_at_once_each_with_its_place() {
    let said = mistakes(
        "lease = \"0s\"\n\nsweep_intervall = \"1s\"\nconcurrency = -3\n",
        &[
            ("JOBWIRE_LOG_FORMAT", "xml"),
            ("JOBWIRE_DATABASE", "sqlite:x.db"),
        ],
        &[
            ("sweep_interval", "-1s"),
            ("amqp_hints_per_message", "5000"),
        ],
    );
    for part in [
        "7 settings are wrong",
        "jobwire.toml:1: setting `lease` is `0s`: the duration `0s` is not more than zero",
        "jobwire.toml:3: setting `sweep_intervall`: there is no such setting; did you mean \
         `sweep_interval`?",
        "jobwire.toml:4: setting `concurrency` is `-3`: give 1 or more",
        "environment variable JOBWIRE_LOG_FORMAT: setting `log_format` is `xml`: write `text` or \
         `json`",
        "environment variable JOBWIRE_DATABASE: setting `JOBWIRE_DATABASE`: there is no such \
         setting; did you mean JOBWIRE_DATABASE_URL?",
        "flag --sweep-interval: setting `sweep_interval` is `-1s`: the duration `-1s` is not more \
         than zero",
        "flag --amqp-hints-per-message: setting `amqp_hints_per_message` is `5000`",
    ] {
        assert!(said.contains(part), "{part}\nin\n{said}");
    }
}

#[test]
fn a_quarantine_after_0_is_never_and_below_3_is_refused() {
    let never = load("quarantine_after = 0\n", &[], &[]).expect("0 is never");
    assert_eq!(never.node_options().quarantine_after, 0);
    for few in ["1", "2"] {
        let said = mistakes("", &[], &[("quarantine_after", few)]);
        assert!(
            said.contains("must be at least 3 (or 0 for never)"),
            "{said}"
        );
    }
}

#[test]
fn a_policy_that_can_not_be_read_has_one_remedy() {
    let said = mistakes("", &[], &[("retry_policy", "R5")]);
    assert!(
        said.ends_with(
            "is `R5`: `R5` is not a duration; use for example `30s`, `exponential(1s, 2, 1h)` or \
             `PT10M,PT17M`"
        ),
        "{said}"
    );
}

#[test]
fn a_number_out_of_its_range_gets_the_range() {
    for (key, numbers, range) in [
        ("concurrency_cpu", ["0", "101"], "1 to 100"),
        ("database_connections", ["0", "1001"], "3 to 1000"),
        ("amqp_hints_per_message", ["0", "513"], "1 to 512"),
        ("kafka_hints_per_message", ["x", "513"], "1 to 512"),
        ("kafka_partitions", ["-1", "10001"], "1 to 10000"),
        ("engine_concurrency", ["0", "1001"], "1 to 1000"),
    ] {
        for number in numbers {
            let said = mistakes("", &[], &[(key, number)]);
            let remedy = format!("`{key}` is `{number}`: give a whole number from {range}");
            assert!(said.contains(&remedy), "{said}");
        }
    }
}

#[test]
fn settings_that_contradict_each_other_are_named() {
    let said = mistakes("", &[("JOBWIRE_SUSPECT_AFTER", "2s")], &[]);
    assert!(
        said.contains("`suspect_after` is `2s`") && said.contains("hint_max_age"),
        "{said}"
    );
}

#[test]
fn timeouts_of_types_are_read_and_mistakes_are_named() {
    let settings =
        load("type_timeouts = [\"http = 2m\", \"a=b=1h\"]\n", &[], &[]).expect("all is well");
    let timeouts = settings.type_timeouts.iter();
    let timeouts: Vec<_> = timeouts
        .map(|of| (&*of.job_type, of.timeout.as_secs()))
        .collect();
    assert_eq!(timeouts, [("http", 120), ("a=b", 3_600)]);
    for (text, part) in [
        ("http", "`http` has no timeout"),
        ("=2m", "has no type"),
        ("http=1m,http=2m", "`http` is named twice; remove one"),
        ("http=0s", "not more than zero"),
    ] {
        for (variable, setting) in [
            ("JOBWIRE_TYPE_TIMEOUTS", "`type_timeouts`"),
            (
                "JOBWIRE_TYPE_HEARTBEAT_TIMEOUTS",
                "`type_heartbeat_timeouts`",
            ),
        ] {
            let said = mistakes("", &[(variable, text)], &[]);
            assert!(said.contains(part) && said.contains(setting), "{said}");
        }
    }
}

#[test]
fn limits_of_a_node_by_type_are_read_and_mistakes_are_named() {
    let file = "type_concurrency = [\"http = 8\", \"a=b=1\"]\n";
    let settings = load(file, &[], &[]).expect("all is well");
    let numbers = settings.type_concurrency.iter();
    let numbers: Vec<_> = numbers.map(|of| (&*of.job_type, of.number)).collect();
    assert_eq!(numbers, [("http", 8), ("a=b", 1)]);
    let shown = settings.type_concurrency.shown();
    assert_eq!(shown, "http=8,a=b=1");
    assert_eq!(Value::read(&shown), Ok(settings.type_concurrency));
    for (text, part) in [
        ("http", "`http` has no number; write, for example, `http=2`"),
        ("=2", "`=2` has no type"),
        ("http=1,http=2", "`http` is named twice; remove one"),
        ("http=0", "the number of `http`: give 1 or more"),
        ("http=-1", "give 1 or more"),
        ("http=two", "the number of `http`: is not a whole number"),
    ] {
        let said = mistakes("", &[("JOBWIRE_TYPE_CONCURRENCY", text)], &[]);
        let named = said.contains("`type_concurrency`");
        assert!(said.contains(part) && named, "{said}");
    }
}

#[test]
fn retry_policies_of_types_are_read_and_mistakes_are_named() {
    let file = "type_retry_policies = [\"http = exponential(1s, 2, 1h)\", \"a=b=PT10M,PT17M\", \"sleep=30s\"]\n";
    let settings = load(file, &[], &[]).expect("all is well");
    let policies = settings.type_retry_policies.iter();
    let policies: Vec<_> = policies
        .map(|of| (&*of.job_type, of.policy.clone()))
        .collect();
    let parsed = |text| RetryPolicy::parse(text).expect("a policy");
    let expected = [
        ("http", parsed("exponential(1s, 2, 1h)")),
        ("a=b", parsed("PT10M,PT17M")),
        ("sleep", parsed("30s")),
    ];
    assert_eq!(policies, expected);
    let shown = settings.type_retry_policies.shown();
    assert_eq!(Value::read(&shown), Ok(settings.type_retry_policies));
    for (text, part) in [
        ("http", "`http` has no policy"),
        ("=30s", "`=30s` has no type"),
        ("http=30s,http=1m", "`http` has two policies"),
        ("http=", "`http` has no policy"),
        (
            "http=30s,mail",
            "the policy of `http`: `mail` is not a duration",
        ),
        ("http=exponential(1s, 2)", "is not of the form exponential"),
        (
            "sleep=1m,http=R0/PT5M",
            "the policy of `http`: the count in",
        ),
    ] {
        let said = mistakes("", &[("JOBWIRE_TYPE_RETRY_POLICIES", text)], &[]);
        assert!(
            said.contains(part) && said.contains("type_retry_policies"),
            "{said}"
        );
    }
}

#[test]
fn limits_of_types_are_read_and_mistakes_are_named() {
    let settings = load(
        "type_limits = [\"http = 10\", \"a=b=2/tenant\", \"mail=100/1s\", \"push= 1000 / 1h / burst:10 / tenant\", \"noop=5/fair:tenant\"]\n",
        &[],
        &[],
    )
    .expect("all is well");
    let limits = settings.type_limits.iter();
    let limits: Vec<_> = limits
        .map(|of| {
            let is_tenant = |key: &Option<LimitKey>| *key == Some(LimitKey::Tenant);
            let tenants = (is_tenant(&of.key), is_tenant(&of.fair));
            (&*of.job_type, of.number, of.period, of.burst, tenants)
        })
        .collect();
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    let expected = [
        ("http", 10, None, None, (false, false)),
        ("a=b", 2, None, None, (true, false)),
        ("mail", 100, Some(second), None, (false, false)),
        ("push", 1000, Some(hour), Some(10), (true, false)),
        ("noop", 5, None, None, (false, true)),
    ];
    assert_eq!(limits, expected);
    let shown = settings.type_limits.shown();
    assert_eq!(
        shown,
        "http=10,a=b=2/tenant,mail=100/1s,push=1000/1h/burst:10/tenant,noop=5/fair:tenant"
    );
    assert_eq!(Value::read(&shown), Ok(settings.type_limits));
    for (text, part) in [
        ("http", "`http` has no limit"),
        ("=2", "has no type"),
        ("http=1,http=2", "two limits"),
        ("http=0", "no number from 1 to 4294967295"),
        ("http=0/1s", "no number from 1 to 4294967295"),
        ("http=2/lane", "neither a period"),
        ("http=2/", "neither a period"),
        ("http=2/0s", "neither a period"),
        ("http=2/1s/burst:0", "the burst of"),
        ("http=2/burst:1", "no period"),
        ("http=100/1s/burst=20", "write `http=100/1s/burst:20`"),
        ("http=2/1s/2s", "and another one"),
        ("http=2/fair", "neither a period"),
        ("http=2/fair:lane", "one of these three behind `fair:`"),
        ("http=2/value:", "names no field of the custom values"),
        ("http=2/fair:value: ", "names no field of the custom values"),
        ("http=2/named:", "names nothing"),
        ("http=2/tenant/category", "names `category` and another one"),
        ("http=2/named:a/named:b", "names `named:b` and another one"),
        (
            "http=2/value:a/fair:value:a",
            "remove `value:a` or `fair:value:a`",
        ),
        (
            "http=2/named:m,sleep=3/named:m",
            "share the limit `m` and differ",
        ),
        (
            "http=2,sleep=3/named:http",
            "share the limit `http` and differ",
        ),
        ("http=2/tenant/fair:tenant", "no others to take turns with"),
        ("http=2/2d", "longer than a day"),
    ] {
        let said = mistakes("", &[("JOBWIRE_TYPE_LIMITS", text)], &[]);
        assert!(
            said.contains(part) && said.contains("type_limits"),
            "{said}"
        );
    }
}

#[test]
fn a_limit_of_a_type_counts_by_any_key_and_shares_its_name() {
    let text = "http=10/value:customer,event=2/category,sleep=3/1s/named:mail,noop=3/1s/named:mail,\
                a=5/fair:value:customer,b=5/tenant/fair:category/named:all";
    let limits = <Vec<TypeLimit>>::read(text).expect("all is well");
    let second = Duration::from_secs(1);
    let expected = [
        Limit::running(10).per_custom_value("customer"),
        Limit::running(2).per_category(),
        Limit::rate(3, second).named("mail"),
        Limit::rate(3, second).named("mail"),
        Limit::running(5).fair_per_custom_value("customer"),
        Limit::running(5)
            .per_tenant()
            .fair_per_category()
            .named("all"),
    ];
    for (of, expected) in limits.iter().zip(&expected) {
        assert_eq!(format!("{:?}", of.limit()), format!("{expected:?}"));
    }
    assert_eq!(limits.len(), expected.len());
    assert_eq!(limits.shown(), text);
    assert_eq!(Value::read(&limits.shown()), Ok(limits));
}

#[test]
fn lanes_are_read_with_their_weights_and_their_order() {
    let file = "lanes = [\"critical = 5\", \"default=3\", \"bulk\"]\nlane_order = \"weighted\"\n";
    let settings = load(file, &[], &[]).expect("all is well");
    let lanes = [("critical", 5), ("default", 3), ("bulk", 1)];
    assert_eq!(
        settings.lanes,
        lanes.map(|(lane, weight)| LaneShare::new(lane, weight))
    );
    assert_eq!(settings.node_options().lanes, settings.lanes);
    let strict = load("", &[], &[("lanes", "a,b"), ("lane_order", "strict")]).expect("all is well");
    assert_eq!(strict.node_options().lane_order, LaneOrder::Strict);

    for (lanes, order, parts) in [
        (
            "a=five",
            "weighted",
            &["the weight of lane `a` is `five`", "`a=5`"][..],
        ),
        ("a,b,a", "weighted", &["names `a` twice"]),
        ("a=0", "weighted", &["`a` the weight 0", "1 to 1000"]),
        ("a=2,b", "strict", &["`a` a weight", "`lane_order`"]),
        ("a b", "weighted", &["`a b`; use 1 to 64 letters"]),
        (",", "weighted", &["is empty"]),
        (
            "a",
            "fair",
            &["setting `lane_order` is `fair`: write `weighted`, `strict` or `aging`"],
        ),
    ] {
        let said = mistakes("", &[], &[("lanes", lanes), ("lane_order", order)]);
        for part in parts {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
}

#[test]
fn urls_that_cannot_work_are_refused_without_showing_their_password() {
    for (key, url, part) in [
        (
            "database_url",
            "mysql://me:secret@db/x",
            "`mysql` is not a supported database",
        ),
        ("database_url", "nonsense", "is not a URL"),
        (
            "database_url",
            "postgres://me:secret@db:port/x",
            "can't be read",
        ),
        (
            "broker_url",
            "kafka://me:secret@k:9092",
            "to 'k' unencrypted",
        ),
        ("broker_url", "in-process", "`in-process:`"),
        ("broker_url", "amqp://me:secret@mq:port", "invalid port"),
        ("broker_url", "amqps://me:secret@mq,", "no host"),
        (
            "broker_url",
            "mqtt://me:secret@mq",
            "`mqtt` is not a supported broker",
        ),
        (
            "broker_url",
            "amqp://me:secret@127.0.0.1,mq/jobs",
            "to 'mq' unencrypted",
        ),
        ("broker_url", "amqps://mq?verify=none", "unknown parameter"),
    ] {
        let said = mistakes("", &[], &[(key, url)]);
        assert!(said.contains(part), "{part} in {said}");
        assert!(!said.contains("secret"), "{said}");
    }
    let said = mistakes(
        "database_url = \"postgres://me:secret@db/x\"\nlease = \n",
        &[],
        &[],
    );
    assert!(
        said.contains("jobwire.toml:2") && !said.contains("secret"),
        "{said}"
    );
    let said = mistakes("database_url = { password = \"secret\" }", &[], &[]);
    assert!(
        said.contains("is a table") && !said.contains("secret"),
        "{said}"
    );
}

#[test]
fn a_named_file_must_be_there_and_a_default_one_need_not() {
    let sources = Sources {
        file: Some(Path::new("no/such/file.toml").to_owned()),
        ..Sources::default()
    };
    let said = Settings::load(&sources).expect_err("missing").to_string();
    assert!(
        said.starts_with("flag --config: setting `config` is `no/such/file.toml`: the file can't"),
        "{said}"
    );
    assert!(load("", &[], &[]).is_ok());
}

#[test]
fn an_address_without_port_and_a_host_with_a_scheme_are_refused() {
    assert!(mistakes("", &[], &[("http", "localhost")]).contains("host:port"));
    assert!(
        mistakes("", &[], &[("http_allow_hosts", "https://x.org/a")]).contains("http_allow_hosts")
    );
    let settings = load("", &[], &[("http", "off")]).expect("off is fine");
    assert_eq!(settings.http, HttpAddress::Off);
}

#[test]
fn the_length_of_an_engines_locks_depends_on_the_engine_until_it_is_set() {
    let lock_for = |of: &str, more: &[(&'static str, &str)]| {
        let flags = [
            ("engine_type", of),
            ("engine_url", "http://127.0.0.1:8080/x"),
            ("engine_database_url", "postgres://127.0.0.1/engine"),
        ];
        let settings = load("", &[], &[&flags[..], more].concat()).expect("usable");
        settings.engine_options().expect("usable").lock_for
    };
    let (minutes, hour) = (Duration::from_secs(300), Duration::from_secs(3_600));
    for (of, default) in [
        ("flowable", Duration::ZERO),
        ("activiti", Duration::ZERO),
        ("camunda", minutes),
    ] {
        assert_eq!(lock_for(of, &[]), default, "{of}");
        assert_eq!(lock_for(of, &[("lease", "10m")]), default, "{of}");
        assert_eq!(lock_for(of, &[("engine_lock_for", "1h")]), hour, "{of}");
    }
    let short = [
        ("engine_url", "http://127.0.0.1:8080/x"),
        ("engine_database_url", "postgres://127.0.0.1/engine"),
        ("engine_lock_for", "10s"),
    ];
    assert!(mistakes("", &[], &short).contains("must not be shorter than `lease`"));
}

#[test]
fn each_engine_has_its_ways_of_execution() {
    let said = |more: &[(&'static str, &str)]| {
        let flags = [
            ("engine_url", "http://127.0.0.1:8080/x"),
            ("engine_database_url", "postgres://127.0.0.1/engine"),
        ];
        load("", &[], &[&flags[..], more].concat())
            .err()
            .map(|mistakes| mistakes.to_string())
            .unwrap_or_default()
    };
    let of = |engine, how| [("engine_type", engine), ("engine_execute", how)];
    for engine in ["flowable", "camunda", "activiti"] {
        for how in ["auto", "rest", "endpoint"] {
            let said = said(&of(engine, how));
            let is_refused = (engine, how) == ("activiti", "rest");
            assert_eq!(
                said.contains("`engine_execute`"),
                is_refused,
                "{engine}: {said}"
            );
        }
    }
    let aware = ("engine_deployment_aware", "true");
    for (engine, how, part) in [
        ("camunda", "rest", ""),
        ("camunda", "endpoint", "the endpoint reports no deployments"),
        ("flowable", "rest", "is for Camunda"),
    ] {
        let said = said(&[&of(engine, how)[..], &[aware]].concat());
        assert_eq!(said.is_empty(), part.is_empty(), "{engine}: {said}");
        assert!(said.contains(part), "{engine}: {said}");
    }
}

#[test]
fn the_page_in_docs_is_the_one_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/settings.md");
    let page = std::fs::read_to_string(&path).expect("docs/reference/settings.md");
    assert_eq!(
        page,
        markdown::page(),
        "write it anew: cargo run -p jobwire-cli -- config --markdown > docs/reference/settings.md"
    );
}

#[test]
#[cfg(feature = "amqp")]
fn a_broker_elsewhere_needs_tls_or_permission() {
    let url = ("broker_url", "amqp://me:secret@mq/jobs");
    let said = mistakes("", &[], &[url]);
    for part in ["'mq'", "amqps://", "`broker_plaintext`", "`allow`"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let allowed = load("", &[], &[url, ("broker_plaintext", "allow")]).expect("allowed");
    assert!(allowed.is_in_the_clear());
    let local = ("broker_url", "amqp://me:secret@localhost/jobs");
    let local = load("", &[], &[local, ("broker_plaintext", "allow")]).expect("all is well");
    assert!(!local.is_in_the_clear());
    assert!(
        load(
            "",
            &[],
            &[("broker_url", "amqps://me:secret@h1,h2:5671/jobs")]
        )
        .is_ok()
    );
    assert!(mistakes("", &[], &[("broker_plaintext", "yes")]).contains("`loopback` or `allow`"));
}

#[test]
#[cfg(feature = "amqp")]
fn settings_of_tls_that_would_have_no_effect_are_named() {
    let file = "broker_tls_ca = \"ca.pem\"\n";
    for url in ["in-process:", "amqp://localhost"] {
        let said = mistakes(file, &[], &[("broker_url", url)]);
        assert!(
            said.contains("jobwire.toml:1: setting `broker_tls_ca` is `ca.pem`: has no effect"),
            "{said}"
        );
    }
    let settings = load(file, &[], &[("broker_url", "amqps://mq")]).expect("all is well");
    assert_eq!(settings.broker_tls_ca, Some("ca.pem".into()));
    let alone = [
        ("broker_url", "amqps://mq"),
        ("broker_tls_certificate", "client.pem"),
    ];
    let said = mistakes("", &[], &alone);
    assert!(
        said.contains("setting `broker_tls_key` is missing"),
        "{said}"
    );
}

#[test]
fn a_key_that_was_pasted_is_not_shown() {
    let pasted = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----";
    let said = mistakes("", &[], &[("broker_tls_key", pasted)]);
    assert!(
        said.contains("name of a file") && !said.contains("secret"),
        "{said}"
    );
}

#[test]
fn statistics_can_be_switched_off() {
    let settings = load("", &[], &[("broker_statistics_interval", "off")]).expect("all is well");
    assert_eq!(settings.broker_statistics_interval, Interval::Off);
    assert!(mistakes("", &[], &[("broker_statistics_interval", "0s")]).contains("`off`"));
    #[cfg(feature = "amqp")]
    assert!(mistakes("", &[], &[("broker_statistics_interval", "1ms")]).contains("100ms to 1h"));
}

/// A fleet moves from a broker without TLS to one with it.
#[test]
#[cfg(feature = "amqp")]
fn files_of_tls_are_for_those_of_several_brokers_that_speak_it() {
    let former = ("former_broker_url", "amqp://localhost/jobs");
    let file = ("broker_tls_ca", "ca.pem");
    let settings = load("", &[], &[("broker_url", "amqps://mq/jobs"), former, file]);
    let settings = settings.expect("all is well");
    let of = |url| settings.for_broker(url).broker_security().ca;
    assert_eq!(of(&settings.broker_url), Some("ca.pem".into()));
    assert_eq!(of(&settings.former_broker_url), None);
    let said = mistakes("", &[], &[("broker_url", "amqp://localhost"), former, file]);
    assert!(
        said.contains("`broker_tls_ca`") && said.contains("has no effect"),
        "{said}"
    );
}

#[test]
fn a_setting_without_effect_is_remarked_only_if_it_was_given() {
    let remarks = |file: &str| -> Vec<&'static str> {
        let settings = load(file, &[], &[]).expect("all is well");
        let remarks = settings.remarks();
        remarks.iter().map(|remark| remark.setting).collect()
    };
    assert!(remarks("").is_empty());
    let idle = "concurrency_idle = \"5s\"\nconcurrency_cpu = 70\nclaim_interval = \"5s\"\n";
    assert_eq!(
        remarks(idle),
        ["concurrency_idle", "concurrency_cpu", "claim_interval"]
    );
    let used = format!(
        "{idle}concurrency_min = 2\nbroker_url = \"none\"\ndatabase_url = \"postgres://localhost/a\"\n"
    );
    assert!(remarks(&used).is_empty());
    let ordered = "start_order = [\"priority\"]\n";
    assert!(remarks(ordered).is_empty());
    assert_eq!(remarks(&format!("{used}{ordered}")), ["start_order"]);
}
