DROP TABLE jobwire.waiting_job;
DROP TABLE jobwire.permit;
DROP TABLE jobwire.permit_key;
DELETE FROM jobwire.schema_version WHERE version = 10;
