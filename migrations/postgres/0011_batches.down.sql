DROP FUNCTION jobwire.add_to_batch;
DROP FUNCTION jobwire.create_batch;
DROP FUNCTION jobwire.is_present;
DROP TABLE jobwire.batch_member;
DROP TABLE jobwire.batch;

DELETE FROM jobwire.schema_version WHERE version = 11;
