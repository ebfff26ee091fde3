ALTER TABLE jobwire.node DROP COLUMN attempts_kept;
DELETE FROM jobwire.schema_version WHERE version = 14;
