-- Priorities. A node may take the jobs of a range of priorities only: its row names the range, both ends included. A job gets
-- its priority by the rules of the table `priority_rule`, and a job whose lane nobody named changes its lane with its priority.

INSERT INTO schema_version (version, readable_by) VALUES (7, 1);

-- NULL: no bound. An older program does not know the columns: its leader counts the node as one that takes every priority.
ALTER TABLE node ADD COLUMN min_priority INTEGER;
ALTER TABLE node ADD COLUMN max_priority INTEGER;

-- Whether the creator of the job named its lane. NULL, as in rows of older programs: not known, and the lane stays.
ALTER TABLE job ADD COLUMN lane_named INTEGER;
ALTER TABLE timer_job ADD COLUMN lane_named INTEGER;
ALTER TABLE suspended_job ADD COLUMN lane_named INTEGER;
ALTER TABLE dead_letter_job ADD COLUMN lane_named INTEGER;

-- The priorities of new jobs; small by nature. The first of these rules that fits a job decides: an override of its job
-- definition, its own priority, the rule of its type, that of its process definition, that of its kind. Without one it is 0.
-- An empty name fits every job; a rule with more names comes before one with fewer.
CREATE TABLE priority_rule (
    scope              TEXT    NOT NULL CHECK (scope IN ('override', 'type', 'process_definition', 'history', 'default')),
    type               TEXT    NOT NULL DEFAULT '',
    process_definition TEXT    NOT NULL DEFAULT '',
    element            TEXT    NOT NULL DEFAULT '',
    priority           INTEGER NOT NULL,
    since              INTEGER NOT NULL,
    CONSTRAINT names_fit_the_scope CHECK (scope = 'override'
        OR element = '' AND (scope = 'type' OR type = '') AND (scope = 'process_definition' OR process_definition = '')),
    CONSTRAINT texts_are_at_most_1024_bytes CHECK (
        max(length(CAST(type AS BLOB)), length(CAST(process_definition AS BLOB)), length(CAST(element AS BLOB))) <= 1024),
    PRIMARY KEY (scope, type, process_definition, element)
) STRICT, WITHOUT ROWID;
