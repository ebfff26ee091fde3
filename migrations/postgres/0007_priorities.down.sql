ALTER TABLE jobwire.node DROP COLUMN min_priority, DROP COLUMN max_priority;
DELETE FROM jobwire.schema_version WHERE version = 7;
