-- One check for each job table.
--
-- PostgreSQL reads the text of every check again for each statement that writes a row, and each job table had fourteen. One
-- check that calls a function has the same conditions; the function is read once in a session. A refused row is named by the
-- same constraints as before.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (13, 1);

-- Whether a row of a job table fits. Raises check_violation with the name of the first condition that is not met. A condition
-- on an absent value is met. Operators and functions have their schema, so that no search_path of a writer changes them.
CREATE FUNCTION jobwire.job_fits(revision integer, kind text, type text, payload json, process_instance text, execution text,
    process_definition text, element text, tenant text, category text, deployment text, exclusive boolean, retries integer,
    failures integer, retry_policy text, due_at timestamptz, repeat text, repeat_until timestamptz, created_at timestamptz,
    lane text, origin text, exception_message text, custom_values json, trace_parent text, ready_at timestamptz, hints integer)
RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    broken text := CASE
        WHEN greatest(pg_catalog.octet_length(type), pg_catalog.octet_length(process_instance), pg_catalog.octet_length(execution),
            pg_catalog.octet_length(process_definition), pg_catalog.octet_length(element), pg_catalog.octet_length(tenant),
            pg_catalog.octet_length(category), pg_catalog.octet_length(deployment), pg_catalog.octet_length(retry_policy),
            pg_catalog.octet_length(repeat), pg_catalog.octet_length(trace_parent)) OPERATOR(pg_catalog.>) 1024
            THEN 'texts_are_at_most_1024_bytes'
        WHEN greatest(pg_catalog.octet_length(lane), pg_catalog.octet_length(origin)) OPERATOR(pg_catalog.>) 64
            THEN 'lane_and_origin_are_at_most_64_bytes'
        WHEN pg_catalog.octet_length(exception_message) OPERATOR(pg_catalog.>) 4096
            THEN 'exception_message_is_at_most_4096_bytes'
        WHEN greatest(pg_catalog.octet_length(payload::text), pg_catalog.octet_length(custom_values::text))
            OPERATOR(pg_catalog.>) 1048576
            THEN 'payload_and_custom_values_are_at_most_1_mib'
        WHEN least(revision, hints, failures) OPERATOR(pg_catalog.<) 0
            OR greatest(revision, hints, failures) OPERATOR(pg_catalog.>) 1000000000
            THEN 'counts_are_in_range'
        WHEN retries OPERATOR(pg_catalog.<) 0 THEN 'job_retries_check'
        -- The next occurrence of a repeating job has as many attempts as both together.
        WHEN (retries::bigint OPERATOR(pg_catalog.+) failures) OPERATOR(pg_catalog.>) 2147483647
            THEN 'retries_and_failures_are_in_range'
        WHEN kind OPERATOR(pg_catalog.<>) ALL ('{message,timer,history}'::text[]) THEN 'job_kind_check'
        WHEN type OPERATOR(pg_catalog.=) '' THEN 'job_type_check'
        WHEN exclusive AND process_instance IS NULL THEN 'job_check'
        WHEN NOT pg_catalog.isfinite(due_at) OR due_at OPERATOR(pg_catalog.>=) '262143-01-01 00:00+00'::timestamptz
            THEN 'due_at_is_finite'
        WHEN NOT pg_catalog.isfinite(repeat_until) OR repeat_until OPERATOR(pg_catalog.>=) '262143-01-01 00:00+00'::timestamptz
            THEN 'repeat_until_is_finite'
        WHEN NOT pg_catalog.isfinite(created_at) OR created_at OPERATOR(pg_catalog.>=) '262143-01-01 00:00+00'::timestamptz
            THEN 'created_at_is_finite'
        WHEN NOT pg_catalog.isfinite(ready_at) OR ready_at OPERATOR(pg_catalog.>=) '262143-01-01 00:00+00'::timestamptz
            THEN 'ready_at_is_finite'
    END;
BEGIN
    IF broken IS NULL THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'new row of a job table violates check constraint "%"', broken
        USING ERRCODE = 'check_violation', SCHEMA = 'jobwire', CONSTRAINT = broken;
END
$$;

-- The check runs with the rights of the role that writes.
GRANT EXECUTE ON FUNCTION jobwire.job_fits TO PUBLIC;

-- Lock the tables for the rest of this migration. A long transaction that holds one of them would otherwise make every node
-- wait behind this lock, so it is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job IN ACCESS EXCLUSIVE MODE;
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

-- Replace the checks. The rows met them, or were there before them: NOT VALID.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['job', 'timer_job', 'suspended_job', 'dead_letter_job'] LOOP
        EXECUTE format('ALTER TABLE jobwire.%I
            DROP CONSTRAINT IF EXISTS texts_are_at_most_1024_bytes,
            DROP CONSTRAINT IF EXISTS lane_and_origin_are_at_most_64_bytes,
            DROP CONSTRAINT IF EXISTS exception_message_is_at_most_4096_bytes,
            DROP CONSTRAINT IF EXISTS payload_and_custom_values_are_at_most_1_mib,
            DROP CONSTRAINT IF EXISTS counts_are_in_range,
            DROP CONSTRAINT IF EXISTS retries_and_failures_are_in_range,
            DROP CONSTRAINT IF EXISTS due_at_is_finite,
            DROP CONSTRAINT IF EXISTS repeat_until_is_finite,
            DROP CONSTRAINT IF EXISTS created_at_is_finite,
            DROP CONSTRAINT IF EXISTS ready_at_is_finite,
            DROP CONSTRAINT IF EXISTS job_kind_check,
            DROP CONSTRAINT IF EXISTS job_type_check,
            DROP CONSTRAINT IF EXISTS job_retries_check,
            DROP CONSTRAINT IF EXISTS job_check,
            ADD CONSTRAINT job_fits CHECK (jobwire.job_fits(revision, kind, type, payload, process_instance, execution,
                process_definition, element, tenant, category, deployment, exclusive, retries, failures, retry_policy, due_at,
                repeat, repeat_until, created_at, lane, origin, exception_message, custom_values, trace_parent, ready_at,
                hints)) NOT VALID', name);
    END LOOP;
END
$$;
