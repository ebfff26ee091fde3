DO $do$
DECLARE
    was text := pg_get_functiondef((SELECT oid FROM pg_proc WHERE pronamespace = 'jobwire'::regnamespace AND proname = 'new_job'));
BEGIN
    EXECUTE replace(was, $$    IF repeat_until IS NOT NULL AND repeat IS NULL THEN
        PERFORM jobwire.refuse('repeat_until', 'is set without `repeat`',
            'give `repeat`, or leave it out: it ends a series and is no expiry of one job');
    END IF;
$$, '');
END
$do$;
ALTER TABLE jobwire.node DROP COLUMN attempts_kept;
DELETE FROM jobwire.schema_version WHERE version = 14;
