DROP INDEX jobwire.waiting_job_fair;
ALTER TABLE jobwire.waiting_job DROP COLUMN fair_key;
DELETE FROM jobwire.schema_version WHERE version = 17;
