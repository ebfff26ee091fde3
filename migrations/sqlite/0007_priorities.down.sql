ALTER TABLE node DROP COLUMN min_priority;
ALTER TABLE node DROP COLUMN max_priority;
DELETE FROM schema_version WHERE version = 7;
