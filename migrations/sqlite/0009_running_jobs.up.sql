-- Running jobs: an operator's cancel.
--
-- A cancel of a running job is a mark in its lease. The statements that end a lease read it: a marked job is deleted and not
-- tried again. A program that does not know the mark ignores it.

INSERT INTO schema_version (version, readable_by) VALUES (9, 1);

ALTER TABLE job_lease ADD COLUMN cancelled_at INTEGER;
