-- Suspensions of one element of a process definition. The value has both names: the number of characters of the definition,
-- a colon, the definition, the element. A program that does not know the word goes on running the jobs.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (16, 1);

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
                RAISE EXCEPTION 'a transaction keeps the table of suspensions busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

-- A name has at most 1,024 bytes, and the number at most four digits.
ALTER TABLE jobwire.suspension
    DROP CONSTRAINT suspension_scope_check,
    ADD CONSTRAINT suspension_scope_check CHECK (scope IN ('process_instance', 'process_definition', 'element', 'type', 'tenant',
        'pause_type', 'pause_category', 'pause_lane', 'pause_all')),
    DROP CONSTRAINT value_is_at_most_1024_bytes,
    ADD CONSTRAINT value_is_at_most_1024_bytes_or_2053_of_an_element CHECK (
        octet_length(value) <= CASE scope WHEN 'element' THEN 2053 ELSE 1024 END);
