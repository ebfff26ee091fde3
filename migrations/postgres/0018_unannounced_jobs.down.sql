DROP TRIGGER may_change_gates ON jobwire.periodic_job;
DROP TABLE jobwire.unannounced_job;
DELETE FROM jobwire.schema_version WHERE version = 18;
