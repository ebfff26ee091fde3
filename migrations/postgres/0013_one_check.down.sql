-- Lock the tables for the rest of this migration, again and again, each time for a moment.
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

-- The checks of migrations 0001 and 0002. The rows meet them, or were there before: NOT VALID.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['job', 'timer_job', 'suspended_job', 'dead_letter_job'] LOOP
        EXECUTE format('ALTER TABLE jobwire.%I
            DROP CONSTRAINT job_fits,
            ADD CONSTRAINT job_kind_check CHECK (kind IN (''message'', ''timer'', ''history'')) NOT VALID,
            ADD CONSTRAINT job_type_check CHECK (type <> '''') NOT VALID,
            ADD CONSTRAINT job_check CHECK (NOT exclusive OR process_instance IS NOT NULL) NOT VALID,
            ADD CONSTRAINT job_retries_check CHECK (retries >= 0) NOT VALID,
            ADD CONSTRAINT due_at_is_finite
                CHECK (isfinite(due_at) AND due_at < timestamptz ''262143-01-01 00:00+00'') NOT VALID,
            ADD CONSTRAINT repeat_until_is_finite
                CHECK (isfinite(repeat_until) AND repeat_until < timestamptz ''262143-01-01 00:00+00'') NOT VALID,
            ADD CONSTRAINT created_at_is_finite
                CHECK (isfinite(created_at) AND created_at < timestamptz ''262143-01-01 00:00+00'') NOT VALID,
            ADD CONSTRAINT ready_at_is_finite
                CHECK (isfinite(ready_at) AND ready_at < timestamptz ''262143-01-01 00:00+00'') NOT VALID,
            ADD CONSTRAINT texts_are_at_most_1024_bytes
                CHECK (greatest(octet_length(type), octet_length(process_instance), octet_length(execution),
                octet_length(process_definition), octet_length(element), octet_length(tenant), octet_length(category),
                octet_length(deployment), octet_length(retry_policy), octet_length(repeat), octet_length(trace_parent)) <= 1024) NOT VALID,
            ADD CONSTRAINT lane_and_origin_are_at_most_64_bytes
                CHECK (greatest(octet_length(lane), octet_length(origin)) <= 64) NOT VALID,
            ADD CONSTRAINT exception_message_is_at_most_4096_bytes CHECK (octet_length(exception_message) <= 4096) NOT VALID,
            ADD CONSTRAINT payload_and_custom_values_are_at_most_1_mib
                CHECK (greatest(octet_length(payload::text), octet_length(custom_values::text)) <= 1048576) NOT VALID,
            ADD CONSTRAINT counts_are_in_range
                CHECK (least(revision, hints, failures) >= 0 AND greatest(revision, hints, failures) <= 1000000000) NOT VALID,
            ADD CONSTRAINT retries_and_failures_are_in_range CHECK (retries::bigint + failures <= 2147483647) NOT VALID', name);
    END LOOP;
END
$$;

DROP FUNCTION jobwire.job_fits;
DELETE FROM jobwire.schema_version WHERE version = 13;
