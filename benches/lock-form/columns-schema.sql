-- The rejected form: the lock is columns of the job, at the end of the row.
-- All other columns, keys, partial indexes and gates are those of the migration.
DROP TABLE jobwire.job_lease;
ALTER TABLE jobwire.job
    ADD COLUMN lock_owner      uuid,
    ADD COLUMN lock_expires_at timestamptz,
    ADD COLUMN lock_fence      bigint;
