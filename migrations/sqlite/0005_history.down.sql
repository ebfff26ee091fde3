DROP TRIGGER open_incident;
DROP TRIGGER resolve_incident;
DROP TABLE incident;
DROP TABLE attempt;
DROP INDEX job_instance;
DROP INDEX job_execution;
DROP INDEX timer_job_instance;
DROP INDEX timer_job_execution;
DELETE FROM schema_version WHERE version = 5;
