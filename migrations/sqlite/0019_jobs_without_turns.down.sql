DROP INDEX waiting_job_without_turn;
DELETE FROM schema_version WHERE version = 19;
