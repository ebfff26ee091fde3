-- Fair limits: the jobs that wait for a permit of one key take turns by a second key, for example by tenant.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (17, 1);

-- Each lock of jobs reads this table, so the lock is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.waiting_job IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the table of waiting jobs busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

-- NULL: the limit is not fair, or the program is older. `seq` is then the creation order of the job, otherwise its turn.
-- The names of an index entry fit a page together.
ALTER TABLE jobwire.waiting_job ADD COLUMN fair_key text,
    ADD CONSTRAINT fair_key_is_at_most_512_bytes CHECK (octet_length(fair_key) <= 512) NOT VALID;
CREATE INDEX waiting_job_fair ON jobwire.waiting_job (limit_name, key, fair_key, seq)
    WHERE fair_key IS NOT NULL AND woken_at IS NULL;
