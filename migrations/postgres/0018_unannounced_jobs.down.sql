DROP TABLE jobwire.unannounced_job;
DELETE FROM jobwire.schema_version WHERE version = 18;
