-- Running jobs: an operator's cancel, progress and checkpoints.
--
-- A cancel of a running job is a mark in its lease. The statements that end a lease read it: a marked job is deleted and not
-- tried again. A program that does not know the mark ignores it.
--
-- Progress and checkpoints are rows of a table of their own, which only the jobs that use them have. They move with no job: the
-- job's id is the key in every table.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (9, 1);

-- Every lock statement writes this table, so the lock is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.job_lease IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the table of leases busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

ALTER TABLE jobwire.job_lease ADD COLUMN cancelled_at timestamptz;

CREATE TABLE jobwire.job_progress (
    job_id        uuid   NOT NULL PRIMARY KEY,
    -- The lock under which the row was written last.
    fence         bigint NOT NULL,
    done          bigint CHECK (done >= 0),
    total         bigint CHECK (total >= 0),
    message       text   CONSTRAINT message_is_at_most_1024_bytes CHECK (octet_length(message) <= 1024),
    reported_at   timestamptz,
    checkpoint    json   CONSTRAINT checkpoint_is_at_most_65536_bytes CHECK (octet_length(checkpoint::text) <= 65536),
    checkpoint_at timestamptz
);

-- Roles that run jobs today go on running them, and roles that read jobs may read this table.
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.privilege_type AS privilege
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.dead_letter_job'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.job_progress TO %s', held.privilege, held.role);
    END LOOP;
END
$$;
