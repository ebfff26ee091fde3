DROP TABLE unannounced_job;
DELETE FROM schema_version WHERE version = 18;
