DO $$
DECLARE
    function regprocedure;
BEGIN
    FOR function IN
        SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = 'jobwire'::regnamespace
          AND p.proname IN ('as_json', 'bad_duration', 'bad_repeat', 'bad_retry_policy', 'check_json', 'check_text', 'lane_of',
              'new_job', 'priority_of', 'refuse', 'set_aside', 'switch_events')
    LOOP
        EXECUTE format('ALTER FUNCTION %s RESET search_path', function);
    END LOOP;
END
$$;

DELETE FROM jobwire.schema_version WHERE version = 13;
