DELETE FROM jobwire.suspension WHERE scope = 'definition_key';
ALTER TABLE jobwire.suspension
    DROP CONSTRAINT suspension_scope_check,
    ADD CONSTRAINT suspension_scope_check CHECK (scope IN ('process_instance', 'process_definition', 'element', 'type', 'tenant',
        'pause_type', 'pause_category', 'pause_lane', 'pause_all')),
    DROP CONSTRAINT value_is_at_most_1024_bytes_or_2053_of_two_names,
    ADD CONSTRAINT value_is_at_most_1024_bytes_or_2053_of_an_element CHECK (
        octet_length(value) <= CASE scope WHEN 'element' THEN 2053 ELSE 1024 END);
DELETE FROM jobwire.schema_version WHERE version = 20;
