DELETE FROM jobwire.suspension WHERE scope LIKE 'pause%';
ALTER TABLE jobwire.suspension
    DROP CONSTRAINT suspension_scope_check,
    ADD CONSTRAINT suspension_scope_check CHECK (scope IN ('process_instance', 'process_definition', 'type', 'tenant'));
DELETE FROM jobwire.schema_version WHERE version = 4;
