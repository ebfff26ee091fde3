-- Priorities. A node may take the jobs of a range of priorities only: its row names the range, both ends included.

INSERT INTO schema_version (version, readable_by) VALUES (7, 1);

-- NULL: no bound. An older program does not know the columns: its leader counts the node as one that takes every priority.
ALTER TABLE node ADD COLUMN min_priority INTEGER;
ALTER TABLE node ADD COLUMN max_priority INTEGER;
