DROP TABLE priority_rule;
ALTER TABLE job DROP COLUMN lane_named;
ALTER TABLE timer_job DROP COLUMN lane_named;
ALTER TABLE suspended_job DROP COLUMN lane_named;
ALTER TABLE dead_letter_job DROP COLUMN lane_named;
ALTER TABLE node DROP COLUMN min_priority;
ALTER TABLE node DROP COLUMN max_priority;
DELETE FROM schema_version WHERE version = 7;
