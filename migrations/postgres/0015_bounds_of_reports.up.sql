-- Bounds for the tables beside the job tables, so that one row of nonsense stops neither a list nor the event stream. As in
-- 0002, only for length and range. Nodes and triggers have always written less. A row that exceeds a bound is no report of
-- theirs, so it is cut or deleted before the checks.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (15, 1);

DELETE FROM jobwire.attempt WHERE NOT (isfinite(started_at) AND isfinite(ended_at) AND isfinite(keep_until)
    AND greatest(started_at, ended_at, keep_until) < timestamptz '262143-01-01 00:00+00'
    AND greatest(octet_length(type), octet_length(process_instance), octet_length(tenant), octet_length(outcome)) <= 1024
    AND coalesce(octet_length(message) <= 65536 AND octet_length(stack) <= 1048576, true));
DELETE FROM jobwire.incident WHERE NOT (isfinite(opened_at) AND coalesce(isfinite(resolved_at), true)
    AND greatest(opened_at, resolved_at) < timestamptz '262143-01-01 00:00+00'
    AND greatest(octet_length(type), octet_length(process_instance), octet_length(process_definition), octet_length(element),
        octet_length(tenant), octet_length(resolution)) <= 1024
    AND coalesce(octet_length(message) <= 65536, true));
DELETE FROM jobwire.event WHERE greatest(octet_length(type), octet_length(process_instance), octet_length(process_definition),
        octet_length(element), octet_length(tenant), octet_length(category), octet_length(trace_parent)) > 1024
    OR octet_length(message) > 65536;
UPDATE jobwire.job_exception SET stack = left(stack, 2000000) WHERE octet_length(stack) > 8388608;
DELETE FROM jobwire.unique_dead_letter WHERE greatest(octet_length(type), octet_length(tenant)) > 1024
    OR octet_length(key) NOT BETWEEN 1 AND 512;
UPDATE jobwire.batch SET callback = NULL WHERE octet_length(callback::text) > 8388608;
UPDATE jobwire.event_stream SET kinds = array_remove(kinds, NULL), types = array_remove(types, NULL)
    WHERE array_position(kinds, NULL) IS NOT NULL OR array_position(types, NULL) IS NOT NULL;

-- The lock is short, but a long transaction that holds one of the tables would make all others wait behind it. So it is tried
-- again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.attempt, jobwire.incident, jobwire.event, jobwire.event_stream, jobwire.job_exception,
                jobwire.unique_dead_letter, jobwire.batch IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the tables busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

ALTER TABLE jobwire.attempt
    ADD CONSTRAINT texts_are_at_most_1024_bytes CHECK (
        greatest(octet_length(type), octet_length(process_instance), octet_length(tenant), octet_length(outcome)) <= 1024) NOT VALID,
    ADD CONSTRAINT message_is_at_most_64_kib_and_stack_1_mib CHECK (
        octet_length(message) <= 65536 AND octet_length(stack) <= 1048576) NOT VALID,
    ADD CONSTRAINT dates_are_finite CHECK (isfinite(started_at) AND isfinite(ended_at) AND isfinite(keep_until)
        AND greatest(started_at, ended_at, keep_until) < timestamptz '262143-01-01 00:00+00') NOT VALID;
ALTER TABLE jobwire.incident
    ADD CONSTRAINT texts_are_at_most_1024_bytes CHECK (
        greatest(octet_length(type), octet_length(process_instance), octet_length(process_definition), octet_length(element),
            octet_length(tenant), octet_length(resolution)) <= 1024) NOT VALID,
    ADD CONSTRAINT message_is_at_most_64_kib CHECK (octet_length(message) <= 65536) NOT VALID,
    ADD CONSTRAINT dates_are_finite CHECK (isfinite(opened_at) AND coalesce(isfinite(resolved_at), true)
        AND greatest(opened_at, resolved_at) < timestamptz '262143-01-01 00:00+00') NOT VALID;
ALTER TABLE jobwire.event
    ADD CONSTRAINT texts_are_at_most_1024_bytes CHECK (
        greatest(octet_length(type), octet_length(process_instance), octet_length(process_definition), octet_length(element),
            octet_length(tenant), octet_length(category), octet_length(trace_parent)) <= 1024) NOT VALID,
    ADD CONSTRAINT message_is_at_most_64_kib CHECK (octet_length(message) <= 65536) NOT VALID;
ALTER TABLE jobwire.event_stream
    ADD CONSTRAINT names_are_not_null_and_at_most_1_mib CHECK (array_position(kinds, NULL) IS NULL
        AND array_position(types, NULL) IS NULL
        AND octet_length(array_to_string(kinds, '')) + coalesce(octet_length(array_to_string(types, '')), 0) <= 1048576) NOT VALID;
ALTER TABLE jobwire.job_exception
    ADD CONSTRAINT stack_is_at_most_8_mib CHECK (octet_length(stack) <= 8388608) NOT VALID;
ALTER TABLE jobwire.unique_dead_letter
    ADD CONSTRAINT texts_are_at_most_1024_bytes CHECK (greatest(octet_length(type), octet_length(tenant)) <= 1024) NOT VALID,
    ADD CONSTRAINT key_is_1_to_512_bytes CHECK (octet_length(key) BETWEEN 1 AND 512) NOT VALID;
ALTER TABLE jobwire.batch
    ADD CONSTRAINT callback_is_at_most_8_mib CHECK (octet_length(callback::text) <= 8388608) NOT VALID;
