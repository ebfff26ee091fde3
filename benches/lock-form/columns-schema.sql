-- The form that was not chosen: the lock is columns of the job, at the end of the row.
-- Everything else (columns, keys, partial indexes, gates) stays as the migration makes it.
DROP TABLE jobwire.job_lease;
ALTER TABLE jobwire.job
    ADD COLUMN lock_owner      uuid,
    ADD COLUMN lock_expires_at timestamptz,
    ADD COLUMN lock_fence      bigint;
