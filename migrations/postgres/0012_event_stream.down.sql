-- Lock the tables that have triggers, each time for a moment: other writers of jobs wait no longer.
DO $$
BEGIN
    PERFORM set_config('lock_timeout', '900ms', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.event_stream IN ACCESS EXCLUSIVE MODE;
            IF EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgname IN ('event_added', 'event_removed', 'event_changed')
                AND tgrelid IN ('jobwire.job'::regclass, 'jobwire.timer_job'::regclass, 'jobwire.suspended_job'::regclass,
                    'jobwire.dead_letter_job'::regclass, 'jobwire.job_lease'::regclass))
            THEN
                LOCK TABLE jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job, jobwire.job_lease
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
DROP FUNCTION jobwire.event_cause, jobwire.event_kinds;
DROP TABLE jobwire.event;
DROP TABLE jobwire.event_stream;
DELETE FROM jobwire.schema_version WHERE version = 12;
