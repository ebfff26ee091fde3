ALTER TABLE node DROP COLUMN attempts_kept;
DELETE FROM schema_version WHERE version = 14;
