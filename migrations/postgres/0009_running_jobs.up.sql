-- Running jobs: an operator's cancel.
--
-- A cancel of a running job is a mark in its lease. The statements that end a lease read it: a marked job is deleted and not
-- tried again. A program that does not know the mark ignores it.

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
