DROP TABLE node;
DELETE FROM schema_version WHERE version = 3;
