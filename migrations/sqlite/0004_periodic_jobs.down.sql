DROP TABLE periodic_job;
DELETE FROM schema_version WHERE version = 4;
