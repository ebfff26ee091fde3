-- The dead letters that were set aside stay.
DROP TRIGGER job_fits_on_insert;
DROP TRIGGER job_fits_on_update;
DROP TRIGGER timer_job_fits_on_insert;
DROP TRIGGER timer_job_fits_on_update;
DROP TRIGGER suspended_job_fits_on_insert;
DROP TRIGGER suspended_job_fits_on_update;
DROP TRIGGER dead_letter_job_fits_on_insert;
DROP TRIGGER dead_letter_job_fits_on_update;
DROP TRIGGER instance_lock_fits_on_insert;
DROP TRIGGER instance_lock_fits_on_update;
DROP TRIGGER suspension_fits_on_insert;
DROP TRIGGER suspension_fits_on_update;
DROP TRIGGER lane_rule_fits_on_insert;
DROP TRIGGER lane_rule_fits_on_update;
DROP TABLE set_aside;
ALTER TABLE job_lease DROP COLUMN struck;
DELETE FROM schema_version WHERE version = 2;
