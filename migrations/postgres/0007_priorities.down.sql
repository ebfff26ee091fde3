-- The functions as migrations 0005 and 0006 made them. A job keeps the priority that a rule gave it.
DO $do$
DECLARE
    was  text := pg_get_functiondef((SELECT oid FROM pg_proc WHERE pronamespace = 'jobwire'::regnamespace AND proname = 'new_job'));
    door record;
    changed text;
BEGIN
    was := replace(was, $$    priority := jobwire.priority_of(type, process_definition, element, priority);
$$, '');
    was := replace(was, 'trace_parent, lane_named)', 'trace_parent)');
    EXECUTE replace(was, 'trace_parent, lane IS NOT NULL)', 'trace_parent)');
    FOR door IN SELECT oid, pg_get_functiondef(oid) AS was FROM pg_proc
        WHERE pronamespace = 'jobwire'::regnamespace AND proname IN ('create_job', 'create_job_hint', 'create_history_job')
    LOOP
        changed := replace(door.was, 'priority bigint DEFAULT NULL::bigint', 'priority bigint DEFAULT 0');
        changed := replace(changed, $$jobwire.priority_of(type, process_definition, element, priority, 'history')$$,
            'coalesce(priority, 0)');
        changed := replace(changed, 'trace_parent, lane_named)', 'trace_parent)');
        EXECUTE replace(changed, 'trace_parent, true)', 'trace_parent)');
    END LOOP;
END
$do$;

DROP FUNCTION jobwire.priority_of;
DROP TABLE jobwire.priority_rule;
ALTER TABLE jobwire.job DROP COLUMN lane_named;
ALTER TABLE jobwire.timer_job DROP COLUMN lane_named;
ALTER TABLE jobwire.suspended_job DROP COLUMN lane_named;
ALTER TABLE jobwire.dead_letter_job DROP COLUMN lane_named;
ALTER TABLE jobwire.node DROP COLUMN min_priority, DROP COLUMN max_priority;
DELETE FROM jobwire.schema_version WHERE version = 7;
