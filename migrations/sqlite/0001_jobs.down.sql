-- Removes every job, lease and record.
DROP TABLE event_log;
DROP TABLE leader;
DROP TABLE lane_rule;
DROP TABLE suspension;
DROP TABLE instance_lock;
DROP TABLE job_lease;
DROP TABLE job_exception;
DROP TABLE dead_letter_job;
DROP TABLE suspended_job;
DROP TABLE timer_job;
DROP TABLE job;
DROP TABLE counter;
DROP TABLE schema_version;
