//! `jobwire.create_job`: what it refuses, which literals it accepts, and which roles may call it
//! (PostgreSQL only).

use chrono::DurationRound;
use jobwire_core::job::repeat::Repeat;
use jobwire_core::{Job, JobId, JobKind, NewJob, PgStore, RetryPolicy, SqlStore, Store};
use jobwire_harness::shared;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::value::RawValue;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::world::{Bench, SqlBench, World};
use jobwire_harness::world::patient;

/// Returns the library's job with this field.
fn job(field: &str, value: &str) -> NewJob {
    let json = || RawValue::from_string(value.to_owned()).unwrap();
    let job = NewJob::of("work", &());
    match field {
        "type" => NewJob::of(value, &()),
        "payload" => NewJob::with_json("work", json()),
        "custom_values" => job.custom_values(json()),
        "process_instance" => job.instance(value),
        "execution" => job.execution(value),
        "process_definition" => job.process_definition(value),
        "element" => job.element(value),
        "tenant" => job.tenant(value),
        "category" => job.category(value),
        "deployment" => job.deployment(value),
        "retry_policy" => job.retry_policy_text(value),
        "repeat" => job.repeat_text(value),
        "trace_parent" => job.trace_parent(value),
        "lane" => job.lane(value),
        "due_at" => job.due(value.parse().unwrap()),
        "repeat_until" => job.repeat_until(value.parse().unwrap()),
        "retries" => job.max_attempts(value.parse().unwrap()),
        "exclusive" => job.exclusive(),
        other => panic!("no field {other}"),
    }
}

/// Creates the same job by SQL. Returns its id or the error's message.
async fn by_sql(store: &PgStore, field: &str, value: &str) -> Result<Uuid, String> {
    let cast = match field {
        "payload" | "custom_values" => "::json",
        "retries" => "::integer",
        "due_at" | "repeat_until" => "::timestamptz",
        "exclusive" => "::boolean",
        _ => "",
    };
    let named = match field {
        "type" => "type => $1::text".to_owned(),
        field => format!("type => 'work', {field} => $1::text{cast}"),
    };
    let sql = format!("SELECT jobwire.create_job({named})");
    let answer = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(value)
        .fetch_one(store.pool())
        .await;
    answer.map_err(|error| error.as_database_error().unwrap().message().to_owned())
}

/// Creates the job by the library.
async fn by_library(w: &World<PgStore>, job: NewJob) -> JobId {
    let id = job.id();
    w.create(vec![job]).await;
    id
}

/// Returns the row of a job without what the database gives it.
async fn given(w: &World<PgStore>, id: JobId) -> String {
    let (view, job, _) = w.store.get(id).await.unwrap().unwrap();
    assert_eq!(job.correlation_id, id.uuid());
    let any_time = chrono::DateTime::UNIX_EPOCH;
    // Of SQL a message, and of the library a timer.
    let was_due = job.repeat.is_none() && job.due_at.is_some_and(|due| due < chrono::Utc::now());
    let job = Job {
        id: JobId::from_uuid(Uuid::nil()),
        seq: 0,
        kind: if was_due { JobKind::Message } else { job.kind },
        correlation_id: Uuid::nil(),
        created_at: any_time,
        ready_at: any_time,
        // A series begins now.
        due_at: job.due_at.filter(|_| job.repeat.is_none()),
        ..job
    };
    format!("{} {job:?}", view.state)
}

#[tokio::test]
async fn create_job_refuses_what_the_library_refuses_in_the_same_words() {
    let w = World::<PgStore>::open().await;
    let (fits, long) = ("ä".repeat(512), "ä".repeat(512) + "x");
    let json = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let mut cases = vec![
        ("type", String::new()),
        ("exclusive", "true".to_owned()),
        ("payload", json(1 << 20)),
        ("payload", json((1 << 20) + 1)),
        ("custom_values", json((1 << 20) + 1)),
    ];
    for field in [
        "type",
        "process_instance",
        "execution",
        "process_definition",
        "element",
        "tenant",
        "category",
        "deployment",
        "retry_policy",
        "repeat",
        "trace_parent",
    ] {
        cases.push((field, fits.clone()));
        cases.push((field, long.clone()));
    }
    for field in ["payload", "custom_values"] {
        for nul in [
            r#""\u0000""#,
            r#""\\u0000""#,
            r#""\\\u0000""#,
            r#""\\\\u0000""#,
            r#"{"\u0000":1}"#,
            r#"["\\u0000","\u0000"]"#,
            r#""\u00001""#,
            r#""\\\\\\u0000\\u0000""#,
            r#""u0000""#,
            r#""\\""#,
        ] {
            cases.push((field, nul.to_owned()));
        }
    }
    for retries in ["1", "0", "-1", "2147483647", "-2147483648"] {
        cases.push(("retries", retries.to_owned()));
    }
    for date in ["0001-01-01T00:00:00Z", "9999-12-31T00:00:00Z"] {
        cases.push(("due_at", date.to_owned()));
        cases.push(("repeat_until", date.to_owned()));
    }
    for lane in [
        "",
        "a b",
        "fast",
        "ä",
        "a\n",
        &"x".repeat(64),
        &"x".repeat(65),
        "A.b-c_9",
        "\u{1b}[2J",
    ] {
        cases.push(("lane", lane.to_owned()));
    }
    let mut refused = 0;
    for (field, value) in cases {
        let new = job(field, &value);
        let library = new.validate().map_err(|invalid| invalid.to_string());
        let sql = by_sql(&w.store, field, &value).await;
        refused += usize::from(library.is_err());
        let shown: String = value.chars().take(80).collect();
        assert_eq!(library, sql.clone().map(|_| ()), "{field}: {shown}");
        if let Ok(of_sql) = sql {
            assert_eq!(
                given(&w, JobId::from_uuid(of_sql)).await,
                given(&w, by_library(&w, new).await).await,
                "{field}: {shown}"
            );
        }
    }
    assert!(refused > 30, "{refused}");
    // No single text is an invalid date for both, so each gets its own.
    let year_0 = "0000-12-31T00:00:00Z";
    for field in ["due_at", "repeat_until"] {
        let library = job(field, year_0).validate().unwrap_err().to_string();
        assert_eq!(by_sql(&w.store, field, "infinity").await, Err(library));
    }
    // An end needs a series, and with one it is accepted.
    let until = chrono::Utc::now() + std::time::Duration::from_secs(60);
    let library = NewJob::of("work", &())
        .repeat_until(until)
        .validate()
        .unwrap_err();
    assert!(library.to_string().contains("`repeat`"), "{library}");
    let series = NewJob::of("work", &())
        .repeat_text("R3/PT10M")
        .repeat_until(until);
    assert_eq!(series.validate().map_err(|e| e.to_string()), Ok(()));
    let both =
        "SELECT jobwire.create_job(type => 'work', repeat => 'R3/PT10M', repeat_until => $1)";
    // The database keeps microseconds.
    let until = until.duration_trunc(chrono::TimeDelta::microseconds(1));
    let until = until.unwrap();
    let of_sql = sqlx::query_scalar(both).bind(until);
    let of_sql = of_sql.fetch_one(w.store.pool()).await.unwrap();
    let of_library = by_library(&w, series.repeat_until(until)).await;
    let ends = given(&w, of_library).await;
    assert!(ends.contains(&format!("{until:?}")), "{ends}");
    assert_eq!(given(&w, JobId::from_uuid(of_sql)).await, ends);
    // Messages about syntax also name the remedy.
    for field in ["retry_policy", "repeat"] {
        let library = job(field, "nonsense").validate().unwrap_err().to_string();
        assert_eq!(by_sql(&w.store, field, "nonsense").await, Err(library));
    }
}

/// Returns policies and intervals, valid and invalid ones.
fn texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "",
        " ",
        "30s",
        " 30s ",
        "\t30s\n",
        "\u{a0}30s",
        "30 s",
        "1.14s",
        ".5s",
        "5.s",
        ".s",
        "+5s",
        "-5s",
        "-0s",
        "--5s",
        "0s",
        "0.0000000001s",
        "0.0000000019s",
        "1e3s",
        "5",
        "s",
        "m",
        "5parsecs",
        "5 min",
        "5mins",
        "5D",
        "100d",
        "36600d",
        "36601d",
        "99999999999999999999s",
        "0.001ms",
        "1.2.3s",
        "nans",
        "infs",
        "PT5M",
        "pt5m",
        "P1DT12H",
        "P1W",
        "P1W2D",
        "P2D1W",
        "P1Y",
        "P0YT5M",
        "P1M",
        "P0M",
        "P0Y0M0W0DT0H0M0S",
        "P",
        "PT",
        "P1D",
        "P1DT",
        "P-1D",
        "-P1D",
        "+P1D",
        "+1DP",
        "-1sP",
        "PT1.5H",
        "PT1,5H",
        "PT1.5H1M",
        "PT1H1.5M",
        "PT1H1.5M1S",
        "PT0.000000001S",
        "PT0.0000000001S",
        "PT1.1400000000000001S",
        "PT1.14S",
        "PT.5S",
        "PT5.S",
        "PT1S1M",
        "PT1M1M",
        "P1.5D",
        "PT0S",
        "-PT0S",
        "P36600D",
        "P36601D",
        "P7304484D",
        "P7304485D",
        "PT175307616H",
        "PT175307617H",
        "PT631107417600S",
        "PT631107417601S",
        "P1043497W",
        "P1043498W",
        "PT99999999999999999999999S",
        "exponential(1s, 2, 1h)",
        "exponential(1s,2,1h)",
        "exponential()",
        "exponential(1s)",
        "exponential(1s, 2, 1h",
        "exponential(1s, 2, 1h, 3)",
        "exponential(x, 2, 1h)",
        "exponential(1s, 0.9, 1h)",
        "exponential(1s, 1, 1h)",
        "exponential(1s, 100, 1h)",
        "exponential(1s, 100.1, 1h)",
        "exponential(1s, 1e1, 1h)",
        "exponential(1s, 1e400, 1h)",
        "exponential(1s, 1e-400, 1h)",
        "exponential(1s, nan, 1h)",
        "exponential(1s, inf, 1h)",
        "exponential(1s, +2, 1h)",
        "exponential(1s, -2, 1h)",
        "exponential(1s, 0x10, 1h)",
        "exponential(1s, .5e1, 1h)",
        "exponential(1s, 2., 1h)",
        "exponential(1s, , 1h)",
        "exponential(1s, 2, soon)",
        "exponential (1s, 2, 1h)",
        "R5/PT5M",
        "R/PT5M",
        "R0/PT5M",
        "R1000000/PT5M",
        "R1000001/PT5M",
        "R4294967295/PT5M",
        "R4294967296/PT5M",
        "R+5/PT5M",
        "R-5/PT5M",
        "R5/",
        "R5",
        "R",
        "R/",
        "Rx/PT5M",
        "R 5/PT5M",
        " R5/PT5M ",
        "r5/PT5M",
        "R5/PT5M/PT5M",
        "R5/30s",
        "R05/PT5M",
        "5/PT5M",
        "PT10M,PT17M,PT20M",
        "PT1M,,PT2M",
        "PT1M,",
        ",",
        "R5,PT5M",
        "1s, 2s",
        "1s,x,y",
    ]
    .map(str::to_owned)
    .into();
    texts.push(vec!["1s"; 100].join(","));
    texts.push(vec!["1s"; 101].join(","));
    // Adds random combinations of these pieces.
    let mut random = StdRng::seed_from_u64(20);
    let pieces = [
        "P",
        "T",
        "H",
        "M",
        "S",
        "D",
        "W",
        "Y",
        "R",
        "/",
        ",",
        ".",
        "-",
        "+",
        " ",
        "0",
        "1",
        "9",
        "12",
        "ms",
        "s",
        "m",
        "min",
        "h",
        "d",
        "exponential(",
        ")",
        "e",
        "PT5M",
        "30s",
    ];
    for _ in 0..20_000 {
        let length = random.random_range(1..8);
        let text = (0..length).map(|_| pieces[random.random_range(0..pieces.len())]);
        texts.push(text.collect());
    }
    texts
}

#[tokio::test]
async fn sql_reads_policies_and_intervals_as_the_library_does() {
    let w = World::<PgStore>::open().await;
    let texts = texts();
    let sql = "SELECT jobwire.bad_retry_policy(t), jobwire.bad_repeat(t) FROM unnest($1::text[]) WITH ORDINALITY AS u(t, n) ORDER BY n";
    let read: Vec<(Option<String>, Option<String>)> = sqlx::query_as(sql)
        .bind(&texts)
        .fetch_all(w.store.pool())
        .await
        .unwrap();
    let mut good = 0;
    for (text, (policy, repeat)) in texts.iter().zip(read) {
        let library = RetryPolicy::parse(text);
        good += usize::from(library.is_ok());
        assert_eq!(
            library.as_ref().err().map(ToString::to_string),
            policy,
            "policy {text:?}"
        );
        let library = Repeat::parse(text);
        good += usize::from(library.is_ok());
        let unjudged = library.is_err() && repeat.is_none();
        // The numbers of a calendar period are read by programs only.
        let may_be_left = is_calendar(text);
        if !(unjudged && may_be_left) {
            assert_eq!(
                library.err().map(|e| e.to_string()),
                repeat,
                "repeat {text:?}"
            );
        }
    }
    assert!(good > 300, "{good}");
}

/// Returns whether the text may contain years or months.
fn is_calendar(text: &str) -> bool {
    let date_part = text.split(['T', 't']).next().unwrap_or_default();
    date_part.contains(['Y', 'y', 'M', 'm'])
}

/// Programs know the names of time zones and the fields of cron expressions; SQL judges the rest.
#[tokio::test]
async fn sql_takes_every_repetition_that_the_library_takes_and_refuses_typing_errors() {
    let w = World::<PgStore>::open().await;
    for text in [
        "R3/PT10M",
        "R/P1M[Europe/Berlin]",
        "R/P1D[Europe/Berlin][catch-up=skip]",
        "@daily",
        "0 2 * * *[Europe/Berlin]",
        "0 0 2 * * MON-FRI",
        "R5/cron(0/5 2 * * *)/2099-01-01T00:00:00Z",
        "R5/2027-01-01T00:00:00Z/P1M/2099-01-01T00:00:00Z[Europe/Berlin][catch-up=all]",
        "R/2027-01-01T00:00:00+01:00/PT1H",
        "R/PT1H/2099-01-01T00:00:00Z",
        "R/PT1H[calendar=berlin-office][closed=skip]",
        "0 8 * * *[Europe/Berlin][calendar=berlin-office]",
    ] {
        assert_eq!(Repeat::parse(text).err(), None, "{text}");
        let id = by_sql(&w.store, "repeat", text).await.unwrap();
        let (_, job, _) = w.store.get(JobId::from_uuid(id)).await.unwrap().unwrap();
        assert_eq!(job.repeat.as_deref(), Some(text));
    }
    for text in [
        "R3PT10M",
        "PT10M",
        "Rx/PT10M",
        "R/PT10Q",
        "R/tomorrow/PT10M",
        "R/2027-01-01T00:00:00Z/PT10M/soon",
        "R/a/b/c/d",
        "every night",
        "0 2 * *",
    ] {
        let library = job("repeat", text).validate().unwrap_err().to_string();
        assert_eq!(by_sql(&w.store, "repeat", text).await, Err(library));
    }
}

/// Without a given number of attempts, that of the policy counts, as in the library.
#[tokio::test]
async fn attempts_are_those_of_the_policy_where_none_are_given() {
    let w = World::<PgStore>::open().await;
    for policy in [
        "30s",
        "R7/PT5M",
        "R+7/PT5M",
        "PT1M,PT2M",
        "exponential(1s, 2, 1h)",
    ] {
        let id = by_sql(&w.store, "retry_policy", policy).await.unwrap();
        let mut tx = w.store.begin().await.unwrap();
        let new = job("retry_policy", policy);
        let of_library = new.id();
        let origin = jobwire_core::store::Origin::Hook;
        w.store.insert(&mut tx, vec![new], origin).await.unwrap();
        tx.commit().await.unwrap();
        let retries = [JobId::from_uuid(id), of_library].map(|id| w.view(id));
        let [sql, library] = retries;
        assert_eq!(
            sql.await.unwrap().retries,
            library.await.unwrap().retries,
            "{policy}"
        );
    }
}

#[tokio::test]
async fn a_payload_is_json_or_jsonb_or_text_and_a_bare_literal_is_unambiguous() {
    let w = World::<PgStore>::open().await;
    for (arguments, expected) in [
        ("'work'", "null"),
        ("type => 'work'", "null"),
        ("'work', NULL", "null"),
        (r#"'work', '{"a": [1]}'"#, r#"{"a": [1]}"#),
        (
            r#"type => 'work', payload => '{"a": [1]}'"#,
            r#"{"a": [1]}"#,
        ),
        (
            r#"type => 'work', payload => '{"a": [1]}', process_instance => 'i', retries => 5"#,
            r#"{"a": [1]}"#,
        ),
        (r#"'work', '{"a":   [1]}'::json"#, r#"{"a":   [1]}"#),
        (r#"'work', '{"a":   [1]}'::jsonb"#, r#"{"a": [1]}"#),
        (r#"'work', '{"a":   [1]}'::text"#, r#"{"a":   [1]}"#),
        (r#"'work', '{"a":   [1]}'::varchar"#, r#"{"a":   [1]}"#),
        (
            r#"'work', payload => '1', custom_values => '{"b": 2}'"#,
            "1",
        ),
        (r#"'work', custom_values => '{"b": 2}'"#, "null"),
    ] {
        let id: Uuid = sqlx::query_scalar(AssertSqlSafe(format!(
            "SELECT jobwire.create_job({arguments})"
        )))
        .fetch_one(w.store.pool())
        .await
        .unwrap_or_else(|error| panic!("{arguments}: {error}"));
        let (_, job, _) = w.store.get(JobId::from_uuid(id)).await.unwrap().unwrap();
        assert_eq!(job.payload.get(), expected, "{arguments}");
        let hinted = format!("SELECT count(*) FROM jobwire.create_job_hint({arguments})");
        assert_eq!(w.store.number(&hinted).await, 1, "{arguments}");
    }
    let bound: Uuid = sqlx::query_scalar("SELECT jobwire.create_job('work', $1)")
        .bind(serde_json::json!({ "a": 1 }))
        .fetch_one(w.store.pool())
        .await
        .unwrap();
    assert!(w.view(JobId::from_uuid(bound)).await.is_some());
    let refused = by_sql_text(&w.store, "{\"a\":").await;
    assert!(
        refused.contains("field `payload` is not JSON") && refused.contains("give JSON text"),
        "{refused}"
    );
}

async fn by_sql_text(store: &PgStore, payload: &str) -> String {
    // The cast is needed, since a connection remembers the types of a statement by its text.
    let refused = sqlx::query("SELECT jobwire.create_job('work', $1::text)")
        .bind(payload)
        .execute(store.pool())
        .await;
    refused.unwrap_err().to_string()
}

/// Creates a role for this test, which may log in. Returns the store as this role sees it.
async fn as_role(w: &World<PgStore>, role: &str) -> PgStore {
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(w.store.pool())
        .await
        .unwrap();
    let sql = format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'");
    w.store.execute(&sql).await;
    let mut url = url::Url::parse(shared::postgres().await.url()).unwrap();
    url.set_path(&name);
    url.set_username(role).unwrap();
    url.set_password(Some("secret")).unwrap();
    patient(url.as_str()).await
}

fn role() -> String {
    format!("creator_{}", Uuid::new_v4().simple())
}

#[tokio::test]
async fn a_creator_needs_no_right_but_to_execute() {
    let w = World::<PgStore>::open().await;
    let role = role();
    let creator = as_role(&w, &role).await;
    let create = "SELECT jobwire.create_job('work', '{}')";
    w.store
        .execute(&format!("GRANT USAGE ON SCHEMA jobwire TO {role}"))
        .await;
    let refused = creator.try_execute(create).await.unwrap_err().to_string();
    assert!(
        refused.contains("permission denied for function create_job"),
        "{refused}"
    );
    w.store
        .execute(&format!(
            "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA jobwire TO {role}"
        ))
        .await;
    creator.execute(create).await;
    let hint = "SELECT id, lane FROM jobwire.create_job_hint(type => 'work', lane => 'fast', payload => '{}')";
    let (id, lane): (Uuid, Option<String>) = sqlx::query_as(hint)
        .fetch_one(creator.pool())
        .await
        .unwrap();
    assert_eq!(lane.as_deref(), Some("fast"));
    let view = w.view(JobId::from_uuid(id)).await.unwrap();
    assert_eq!(view.lane.as_str(), "fast");
    // A timer gets no hint.
    let waits =
        "SELECT id, lane FROM jobwire.create_job_hint('work', due_at => now() + interval '1 day')";
    let (_, lane): (Uuid, Option<String>) = sqlx::query_as(waits)
        .fetch_one(creator.pool())
        .await
        .unwrap();
    assert_eq!(lane, None);
    for forbidden in [
        "SELECT FROM jobwire.job",
        "INSERT INTO jobwire.job (id, type, correlation_id) VALUES (gen_random_uuid(), 'work', gen_random_uuid())",
        "SELECT FROM jobwire.set_aside('job', (SELECT array_agg(gen_random_uuid())), 'why')",
        "DELETE FROM jobwire.job",
        "SET ROLE jobwire_creator",
    ] {
        let refused = creator
            .try_execute(forbidden)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("permission denied"),
            "{forbidden}: {refused}"
        );
    }
    // Row security applies to roles that write the tables themselves.
    w.store
        .execute("ALTER TABLE jobwire.job ENABLE ROW LEVEL SECURITY")
        .await;
    creator.execute(create).await;
    creator.close().await;
    for sql in [format!("DROP OWNED BY {role}"), format!("DROP ROLE {role}")] {
        w.store.execute(&sql).await;
    }
}

/// A job of a type of Jobwire itself could pause all others.
#[tokio::test]
async fn a_creator_can_not_create_a_job_that_changes_how_others_run() {
    let w = World::<PgStore>::open().await;
    for call in [
        "jobwire.create_job(type => 'jobwire.suspension')",
        "jobwire.create_job(type => 'jobwire.suspension', payload => '{}'::text)",
        "(SELECT id FROM jobwire.create_job_hint(type => 'jobwire.other'))",
        "jobwire.create_history_job(type => 'jobwire.suspension')",
    ] {
        let refused = sqlx::query(AssertSqlSafe(format!("SELECT {call}")))
            .execute(w.store.pool())
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains("begins with `jobwire.`"), "{refused}");
    }
    let similar = "SELECT jobwire.create_job(type => 'jobwire-report')";
    sqlx::query(similar).execute(w.store.pool()).await.unwrap();
}

/// The triggers of the incidents run with the rights of their owner. A creator who may execute all
/// functions hangs none of them on a table of its own.
#[tokio::test]
async fn a_creator_can_not_use_a_trigger_of_the_owner() {
    let w = World::<PgStore>::open().await;
    for (when, name) in [("INSERT", "open_incident"), ("DELETE", "resolve_incident")] {
        let sql = format!(
            "CREATE TABLE jobwire.mine (id uuid, type text, process_instance text, process_definition text,
                 element text, tenant text, exception_message text);
             CREATE TRIGGER mine AFTER {when} ON jobwire.mine FOR EACH ROW EXECUTE FUNCTION jobwire.{name}();
             INSERT INTO jobwire.mine (id, type) VALUES (gen_random_uuid(), 'forged');
             DELETE FROM jobwire.mine"
        );
        let refused = sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(w.store.pool())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("belongs to jobwire.dead_letter_job"),
            "{refused}"
        );
    }
    assert_eq!(w.rows("incident").await, 0);
}

/// A role with rights on the jobs, and none on the suspensions, pauses nothing.
#[tokio::test]
async fn a_role_that_inserts_jobs_needs_a_right_to_pause_others() {
    let w = World::<PgStore>::open().await;
    let role = format!("inserts_{}", uuid::Uuid::new_v4().simple());
    let sql = format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA jobwire TO {role};
         GRANT INSERT ON jobwire.job, jobwire.periodic_job TO {role}; GRANT USAGE ON SEQUENCE jobwire.job_seq TO {role}"
    );
    let pool = w.store.pool();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(pool)
        .await
        .unwrap();
    let job = |job_type: &str| {
        format!(
            "INSERT INTO jobwire.job (id, type, correlation_id) VALUES (gen_random_uuid(), '{job_type}', gen_random_uuid())"
        )
    };
    let periodic = |job_type: &str| {
        format!(
            "INSERT INTO jobwire.periodic_job (name, schedule, template)
             VALUES (gen_random_uuid(), 'R/P1D', '{{\"type\":\"{job_type}\"}}')"
        )
    };
    for insert in [&job as &dyn Fn(&str) -> String, &periodic] {
        for (job_type, may) in [("report", true), ("jobwire.suspension", false)] {
            // A refused statement leaves the transaction of its connection open.
            let mut connection = pool.acquire().await.unwrap().detach();
            let sql = format!("BEGIN; SET LOCAL ROLE {role}; {}; COMMIT", insert(job_type));
            let inserted = sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut connection)
                .await;
            let refused = inserted.err().map_or(String::new(), |e| e.to_string());
            assert_eq!(refused.is_empty(), may, "{job_type}: {refused}");
            assert!(
                may || refused.contains("may not write jobwire.suspension"),
                "{refused}"
            );
        }
    }
    let sql = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn present_creators_may_go_on_and_nobody_else_may() {
    let w = World::<PgStore>::open().await;
    w.store.down_to(1).await;
    let (creator, of_columns, other) = (role(), role(), role());
    for sql in [
        format!("CREATE ROLE {creator}"),
        format!("CREATE ROLE {of_columns}"),
        format!("CREATE ROLE {other}"),
        format!("GRANT USAGE ON SCHEMA jobwire TO {creator}, {of_columns}, {other}"),
        format!("GRANT INSERT ON jobwire.job, jobwire.timer_job TO {creator}"),
        format!("GRANT INSERT (id, type, payload) ON jobwire.job TO {of_columns}"),
        format!("GRANT SELECT ON jobwire.job TO {other}"),
    ] {
        w.store.execute(&sql).await;
    }
    w.store.up().await;
    for (role, may) in [(&creator, 6), (&of_columns, 6), (&other, 0)] {
        let doors = format!(
            "SELECT count(*) FROM pg_proc WHERE pronamespace = 'jobwire'::regnamespace
                AND proname IN ('create_job', 'create_job_hint') AND has_function_privilege('{role}', oid, 'EXECUTE')"
        );
        assert_eq!(w.store.number(&doors).await, may, "{role}");
    }
    // The functions run as a role that cannot log in, and find nothing by the caller's search path.
    let safe = "SELECT count(*) FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner
        WHERE p.pronamespace = 'jobwire'::regnamespace AND p.proname IN ('create_job', 'create_job_hint') AND p.prosecdef
          AND p.proconfig = ARRAY['search_path=pg_catalog, pg_temp'] AND r.rolname = 'jobwire_creator' AND NOT r.rolcanlogin";
    assert_eq!(w.store.number(safe).await, 6);
    w.store.down_to(1).await;
    w.store.execute("SELECT jobwire.create_job('work')").await;
    for sql in [
        format!("DROP OWNED BY {creator}, {of_columns}, {other}"),
        format!("DROP ROLE {creator}, {of_columns}, {other}"),
    ] {
        w.store.execute(&sql).await;
    }
}

/// An owner that may not create roles can still migrate: the functions stay with the schema's
/// owner.
#[tokio::test]
async fn an_owner_who_may_make_no_role_migrates_all_the_same() {
    let w = World::<PgStore>::empty().await;
    let role = role();
    let owner = as_role(&w, &role).await;
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(w.store.pool())
        .await
        .unwrap();
    w.store
        .execute(&format!("GRANT CREATE ON DATABASE \"{name}\" TO {role}"))
        .await;
    owner.migrate().await.unwrap();
    owner
        .execute("SELECT jobwire.create_job('work', '{}')")
        .await;
    let owned = format!(
        "SELECT count(*) FROM pg_proc WHERE proname = 'create_job' AND pg_get_userbyid(proowner) = '{role}'"
    );
    assert_eq!(owner.number(&owned).await, 3);
    let public = "SELECT count(*) FROM pg_proc WHERE proname = 'create_job' AND has_function_privilege('public', oid, 'EXECUTE')";
    assert_eq!(owner.number(public).await, 0);
    owner.migrate_down(0).await.unwrap();
    owner.close().await;
    for sql in [format!("DROP OWNED BY {role}"), format!("DROP ROLE {role}")] {
        w.store.execute(&sql).await;
    }
}

/// A role that runs and creates jobs may call `migrate` when the schema is current.
#[tokio::test]
async fn a_current_schema_is_migrated_by_a_role_without_rights_to_create_one() {
    let w = World::<PgStore>::open().await;
    let role = role();
    let app = as_role(&w, &role).await;
    let refused = app.migrate().await.unwrap_err().to_string();
    for right in [
        "USAGE ON SCHEMA jobwire",
        "SELECT ON jobwire.schema_version",
    ] {
        let sql = format!("GRANT {right} TO {role}");
        w.store.execute(&sql).await;
    }
    app.migrate().await.unwrap();
    app.close().await;
    for sql in [format!("DROP OWNED BY {role}"), format!("DROP ROLE {role}")] {
        w.store.execute(&sql).await;
    }
    assert!(refused.contains("permission denied"), "{refused}");
}

#[tokio::test]
async fn a_role_that_may_not_create_the_schema_is_told_who_may() {
    let w = World::<PgStore>::empty().await;
    let role = role();
    let app = as_role(&w, &role).await;
    let refused = app.migrate().await.unwrap_err().to_string();
    app.close().await;
    w.store.execute(&format!("DROP ROLE {role}")).await;
    assert!(
        refused.contains("with a role that may create the schema"),
        "{refused}"
    );
}
