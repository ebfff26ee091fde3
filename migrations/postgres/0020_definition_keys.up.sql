-- Suspensions of all versions of a process definition, by its key and its tenant. The value has both names: the key, which has no
-- colon, and, if there is a tenant, a colon and the tenant. A program that does not know the word goes on running the jobs.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (20, 1);

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

-- Each of two names has at most 1,024 bytes.
ALTER TABLE jobwire.suspension
    DROP CONSTRAINT suspension_scope_check,
    ADD CONSTRAINT suspension_scope_check CHECK (scope IN ('process_instance', 'process_definition', 'definition_key', 'element',
        'type', 'tenant', 'pause_type', 'pause_category', 'pause_lane', 'pause_all')),
    DROP CONSTRAINT value_is_at_most_1024_bytes_or_2053_of_an_element,
    ADD CONSTRAINT value_is_at_most_1024_bytes_or_2053_of_two_names CHECK (
        octet_length(value) <= CASE WHEN scope IN ('element', 'definition_key') THEN 2053 ELSE 1024 END);
