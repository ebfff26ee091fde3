DROP TABLE waiting_job;
DROP TABLE permit;
DROP TABLE permit_key;
DELETE FROM schema_version WHERE version = 10;
