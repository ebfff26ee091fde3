DROP TABLE jobwire.node;
DELETE FROM jobwire.schema_version WHERE version = 3;
