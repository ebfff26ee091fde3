DROP TRIGGER take_key_back;
DROP TABLE unique_dead_letter;
DROP TABLE unique_job;
DELETE FROM schema_version WHERE version = 8;
