ALTER TABLE jobwire.attempt DROP CONSTRAINT texts_are_at_most_1024_bytes,
    DROP CONSTRAINT message_is_at_most_64_kib_and_stack_1_mib, DROP CONSTRAINT dates_are_finite;
ALTER TABLE jobwire.incident DROP CONSTRAINT texts_are_at_most_1024_bytes, DROP CONSTRAINT message_is_at_most_64_kib,
    DROP CONSTRAINT dates_are_finite;
ALTER TABLE jobwire.event DROP CONSTRAINT texts_are_at_most_1024_bytes, DROP CONSTRAINT message_is_at_most_64_kib;
ALTER TABLE jobwire.event_stream DROP CONSTRAINT names_are_not_null_and_at_most_1_mib;
ALTER TABLE jobwire.job_exception DROP CONSTRAINT stack_is_at_most_8_mib;
ALTER TABLE jobwire.unique_dead_letter DROP CONSTRAINT texts_are_at_most_1024_bytes, DROP CONSTRAINT key_is_1_to_512_bytes;
ALTER TABLE jobwire.batch DROP CONSTRAINT callback_is_at_most_8_mib;
DELETE FROM jobwire.schema_version WHERE version = 15;
