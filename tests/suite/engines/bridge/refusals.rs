//! Databases that the bridge refuses, with the remedy. No engine runs.

use jobwire_core::Store;
use jobwire_engines::{EngineOptions, EngineStore};
use jobwire_tests::shared;
use sqlx::PgPool;

/// Returns what the probes of both engines say about a database with these tables.
async fn said(tables: &str) -> Vec<String> {
    let database = shared::postgres().await.create_database().await;
    let pool = PgPool::connect(&database).await.unwrap();
    let created = sqlx::raw_sql(sqlx::AssertSqlSafe(tables.to_owned()));
    created.execute(&pool).await.unwrap();
    let url = "http://127.0.0.1:9/engine";
    let flowable = EngineStore::flowable(&database, EngineOptions::new(url)).await;
    let camunda = EngineStore::camunda(&database, EngineOptions::camunda(url)).await;
    let mut said = Vec::new();
    for store in [flowable.unwrap(), camunda.unwrap()] {
        said.push(store.probe().await.expect_err("refused").to_string());
        Store::close(&store).await;
    }
    said
}

#[tokio::test]
async fn a_table_prefix_is_refused_and_named() {
    for said in said("CREATE TABLE acme_act_ru_job (id_ text)").await {
        assert!(
            said.contains("`public.acme_act_ru_job`") && said.contains("databaseTablePrefix"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn tables_in_another_schema_are_named_with_the_setting() {
    let tables = "CREATE SCHEMA acme; CREATE TABLE acme.act_ru_job (id_ text)";
    for said in said(tables).await {
        assert!(
            said.contains("`acme`") && said.contains("set `engine_schema`"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_database_of_another_program_is_no_engine() {
    for said in said("CREATE TABLE orders (id bigint)").await {
        assert!(
            said.contains("act_ru_job") && said.contains("is missing"),
            "{said}"
        );
        assert!(!said.contains("prefix"), "{said}");
    }
}
