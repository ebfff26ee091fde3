-- Pauses: rows of the table of suspensions with words of their own. A paused job stays ready, and no statement locks it.
-- A program that does not know a word goes on running its jobs.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (4, 1);

-- Every lock statement reads this table, so the lock is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.suspension IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the job tables busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

ALTER TABLE jobwire.suspension
    DROP CONSTRAINT suspension_scope_check,
    ADD CONSTRAINT suspension_scope_check CHECK (scope IN ('process_instance', 'process_definition', 'type', 'tenant',
        'pause_type', 'pause_category', 'pause_lane', 'pause_all'));
