-- The attempts of nodes that die. The row of a node names the types whose attempts it records, so that any leader can record
-- the attempts whose leases it ends.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (14, 1);

-- Nodes write and read this table once a minute, so the lock is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.node IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the table of nodes busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

-- An object of types, each with the milliseconds for which a row is kept. NULL: the node records none, or its program is older.
ALTER TABLE jobwire.node ADD COLUMN attempts_kept jsonb,
    ADD CONSTRAINT attempts_kept_is_at_most_8_mib CHECK (octet_length(attempts_kept::text) <= 8388608);

-- create_job refuses an end of a series without a series.
DO $do$
DECLARE
    was    text := pg_get_functiondef((SELECT oid FROM pg_proc WHERE pronamespace = 'jobwire'::regnamespace AND proname = 'new_job'));
    anchor text := $$    IF lane !~ '^[A-Za-z0-9._-]{1,64}$' THEN
$$;
    its_check text := $$    IF repeat_until IS NOT NULL AND repeat IS NULL THEN
        PERFORM jobwire.refuse('repeat_until', 'is set without `repeat`',
            'give `repeat`, or leave it out: it ends a series and is no expiry of one job');
    END IF;
$$;
BEGIN
    IF strpos(was, anchor) = 0 THEN
        RAISE EXCEPTION 'jobwire.new_job is not the function of migration 0013; undo the change, then migrate again';
    END IF;
    EXECUTE replace(was, anchor, its_check || anchor);
END
$do$;
