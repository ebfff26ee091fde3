DROP INDEX waiting_job_fair;
ALTER TABLE waiting_job DROP COLUMN fair_key;
DELETE FROM schema_version WHERE version = 17;
