-- Running jobs: an operator's cancel, progress and checkpoints.
--
-- A cancel of a running job is a mark in its lease. The statements that end a lease read it: a marked job is deleted and not
-- tried again. A program that does not know the mark ignores it.
--
-- Progress and checkpoints are rows of a table of their own, which only the jobs that use them have. They move with no job: the
-- job's id is the key in every table.

INSERT INTO schema_version (version, readable_by) VALUES (9, 1);

ALTER TABLE job_lease ADD COLUMN cancelled_at INTEGER;

CREATE TABLE job_progress (
    job_id        TEXT    NOT NULL PRIMARY KEY,
    -- The lock under which the row was written last.
    fence         INTEGER NOT NULL,
    done          INTEGER CHECK (done >= 0),
    total         INTEGER CHECK (total >= 0),
    message       TEXT    CONSTRAINT message_is_at_most_1024_bytes CHECK (length(CAST(message AS BLOB)) <= 1024),
    reported_at   INTEGER,
    checkpoint    TEXT    CONSTRAINT checkpoint_is_at_most_65536_bytes CHECK (length(CAST(checkpoint AS BLOB)) <= 65536)
                          CONSTRAINT checkpoint_is_json CHECK (checkpoint IS NULL OR json_valid(checkpoint)),
    checkpoint_at INTEGER
) STRICT, WITHOUT ROWID;
