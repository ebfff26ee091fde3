DROP TABLE batch_member;
DROP TABLE batch;
DELETE FROM schema_version WHERE version = 11;
