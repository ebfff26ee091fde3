DELETE FROM jobwire.suspension WHERE scope = 'element';
ALTER TABLE jobwire.suspension
    DROP CONSTRAINT suspension_scope_check,
    ADD CONSTRAINT suspension_scope_check CHECK (scope IN ('process_instance', 'process_definition', 'type', 'tenant',
        'pause_type', 'pause_category', 'pause_lane', 'pause_all')),
    DROP CONSTRAINT value_is_at_most_1024_bytes_or_2053_of_an_element,
    ADD CONSTRAINT value_is_at_most_1024_bytes CHECK (octet_length(value) <= 1024) NOT VALID;
DELETE FROM jobwire.schema_version WHERE version = 16;
