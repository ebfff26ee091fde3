DROP TABLE job_progress;
ALTER TABLE job_lease DROP COLUMN cancelled_at;
DELETE FROM schema_version WHERE version = 9;
