-- The functions of create_job have a fixed search_path.
--
-- PL/pgSQL looks up the types of a function at its first call in a session, and pg_temp comes before pg_catalog there. A role
-- that may create jobs could call such a function with a type of its own named `text`; create_job, which has more rights, then
-- used that type, and ran the checks of its domain.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (13, 1);

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
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', function);
    END LOOP;
END
$$;
