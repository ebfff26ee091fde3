DROP TRIGGER open_incident ON jobwire.dead_letter_job;
DROP TRIGGER resolve_incident ON jobwire.dead_letter_job;
DROP FUNCTION jobwire.open_incident();
DROP FUNCTION jobwire.resolve_incident();
DROP TABLE jobwire.incident;
DROP TABLE jobwire.attempt;
DROP FUNCTION jobwire.create_history_job;
DROP INDEX jobwire.job_instance, jobwire.job_execution, jobwire.timer_job_instance, jobwire.timer_job_execution;
DELETE FROM jobwire.schema_version WHERE version = 5;
