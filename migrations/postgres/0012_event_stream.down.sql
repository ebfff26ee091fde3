-- Lock the tables that have triggers. Writers of jobs wait for less than a second for each table, so for some seconds at worst.
DO $$
BEGIN
    -- A vacuum may keep the later locks away for hours. The server ends it when this lock has waited for deadlock_timeout, and
    -- no vacuum begins until the end. No writer waits behind this lock.
    PERFORM set_config('lock_timeout', (5000 + setting::integer)::text, true)
    FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout';
    BEGIN
        LOCK TABLE jobwire.job_lease, jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job, jobwire.event
            IN SHARE UPDATE EXCLUSIVE MODE;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        RAISE EXCEPTION 'maintenance or a switch of the stream keeps the job tables busy; end it (pg_stat_activity shows it), then migrate again'
            USING ERRCODE = 'lock_not_available';
    END;
    PERFORM set_config('lock_timeout', '900ms', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.event_stream IN ACCESS EXCLUSIVE MODE;
            IF EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgname IN ('event_added', 'event_removed', 'event_changed')
                AND tgrelid IN ('jobwire.job'::regclass, 'jobwire.timer_job'::regclass, 'jobwire.suspended_job'::regclass,
                    'jobwire.dead_letter_job'::regclass, 'jobwire.job_lease'::regclass))
            THEN
                LOCK TABLE jobwire.job_lease, jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job
                    IN ACCESS EXCLUSIVE MODE;
            END IF;
            LOCK TABLE jobwire.event IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the job tables busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(0.5);
        END;
    END LOOP;
END
$$;

-- The triggers go with their functions.
DROP FUNCTION jobwire.switch_events;
DROP FUNCTION jobwire.tell_added, jobwire.tell_removed, jobwire.tell_changed, jobwire.tell_leased CASCADE;
DROP TABLE jobwire.event;
DROP TABLE jobwire.event_stream;
DROP FUNCTION jobwire.event_cause, jobwire.event_kinds;
DELETE FROM jobwire.schema_version WHERE version = 12;
