-- Priorities. A node may take the jobs of a range of priorities only: its row names the range, both ends included.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (7, 1);

-- NULL: no bound. An older program does not know the columns: its leader counts the node as one that takes every priority.
ALTER TABLE jobwire.node ADD COLUMN min_priority bigint, ADD COLUMN max_priority bigint;
