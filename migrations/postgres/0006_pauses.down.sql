DROP TRIGGER may_change_gates ON jobwire.job;
DROP TRIGGER may_change_gates ON jobwire.timer_job;
DROP FUNCTION jobwire.may_change_gates;
DELETE FROM jobwire.suspension WHERE scope LIKE 'pause%';
ALTER TABLE jobwire.suspension
    DROP CONSTRAINT suspension_scope_check,
    ADD CONSTRAINT suspension_scope_check CHECK (scope IN ('process_instance', 'process_definition', 'type', 'tenant'));
DO $do$
DECLARE
    was    text := pg_get_functiondef((SELECT oid FROM pg_proc WHERE pronamespace = 'jobwire'::regnamespace AND proname = 'new_job'));
BEGIN
    EXECUTE replace(was, $$    IF starts_with(type, 'jobwire.') THEN
        PERFORM jobwire.refuse('type', 'begins with `jobwire.`', 'choose another name: these types change how jobs run, so only '
            'the library and the program create them');
    END IF;
$$, '');
END
$do$;
DELETE FROM jobwire.schema_version WHERE version = 6;
