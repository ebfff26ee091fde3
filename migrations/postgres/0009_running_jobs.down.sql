DROP TABLE jobwire.job_progress;
ALTER TABLE jobwire.job_lease DROP COLUMN cancelled_at;
DELETE FROM jobwire.schema_version WHERE version = 9;
