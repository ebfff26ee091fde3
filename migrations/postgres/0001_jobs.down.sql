-- Removes every job, lease and record. The schema itself stays while the migration history lives in it.
DROP FUNCTION jobwire.create_job;
DROP FUNCTION jobwire.lane_of;
DROP TABLE jobwire.event_log, jobwire.leader, jobwire.lane_rule, jobwire.suspension, jobwire.instance_lock, jobwire.job_lease,
    jobwire.job_exception, jobwire.dead_letter_job, jobwire.suspended_job, jobwire.timer_job, jobwire.job,
    jobwire.schema_version;
DROP SEQUENCE jobwire.fence_seq, jobwire.job_seq;
DROP FUNCTION jobwire.uuid_v7();
