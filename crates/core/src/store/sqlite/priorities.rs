//! The priority rules.

use super::sql::priority_columns;
use super::{SqliteStore, decode};
use crate::lane::priority::{MAX_PRIORITY_RULES, PriorityRule, PriorityScope};
use crate::store::decode::priority_rule;
use crate::store::error::StoreError;
use crate::store::statements::Priorities;
use crate::store::too_many_priority_rules;

const READ: &str = concat!(
    "SELECT ",
    priority_columns!(),
    " FROM priority_rule ORDER BY scope, type, process_definition, element"
);
const COUNT: &str = "SELECT count(*) FROM priority_rule";
const WRITE: &str = concat!(
    "INSERT INTO priority_rule (",
    priority_columns!(),
    ", since) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (scope, type, process_definition, element) DO UPDATE SET priority = excluded.priority, since = excluded.since"
);
const DELETE: &str = "
DELETE FROM priority_rule WHERE scope = ?1 AND type = ?2 AND process_definition = ?3 AND element = ?4";

impl Priorities for SqliteStore {
    async fn read_priorities(&self) -> Result<Vec<PriorityRule>, StoreError> {
        let rows = sqlx::query(READ).fetch_all(&self.readers).await?;
        rows.iter().map(priority_rule).collect()
    }

    async fn write_priority(&self, rule: &PriorityRule) -> Result<(), StoreError> {
        let (word, names) = rule.scope.parts();
        let mut tx = self.write().await?;
        let mut write = sqlx::query(WRITE).bind(word);
        for name in names {
            write = write.bind(name);
        }
        let write = write.bind(rule.priority).bind(decode::now_micros());
        write.execute(&mut *tx).await?;
        let rules: i64 = sqlx::query_scalar(COUNT).fetch_one(&mut *tx).await?;
        if rules > MAX_PRIORITY_RULES {
            return Err(too_many_priority_rules());
        }
        Ok(tx.commit().await?)
    }

    async fn delete_priority(&self, scope: &PriorityScope) -> Result<bool, StoreError> {
        let (word, names) = scope.parts();
        let mut tx = self.write().await?;
        let mut delete = sqlx::query(DELETE).bind(word);
        for name in names {
            delete = delete.bind(name);
        }
        let deleted = delete.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(deleted > 0)
    }
}
