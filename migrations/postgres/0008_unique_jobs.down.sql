DROP FUNCTION jobwire.create_unique_job;
DROP TRIGGER take_key_back ON jobwire.dead_letter_job;
DROP FUNCTION jobwire.take_key_back;
DROP TABLE jobwire.unique_dead_letter;
DROP TABLE jobwire.unique_job;
DROP FUNCTION jobwire.key_taken;
DROP FUNCTION jobwire.has_key;
DROP FUNCTION jobwire.period_end;

DELETE FROM jobwire.schema_version WHERE version = 8;
