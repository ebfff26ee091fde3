-- Periodic jobs: each names a schedule and the job that the leader creates at each of its due dates.
--
-- A declaration with a larger version replaces one with a smaller version, never the other way round.

INSERT INTO schema_version (version, readable_by) VALUES (4, 1);

CREATE TABLE periodic_job (
    name       TEXT    NOT NULL PRIMARY KEY CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 256),
    version    INTEGER NOT NULL DEFAULT 0 CHECK (version >= 0),
    -- What `repeat` of a job may be, without a count.
    schedule   TEXT    NOT NULL CHECK (length(CAST(schedule AS BLOB)) <= 1024),
    -- The fields of the job, as an object.
    template   TEXT    NOT NULL CHECK (json_valid(template) AND length(CAST(template AS BLOB)) <= 4194304),
    paused     INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    -- NULL: the schedule has ended.
    next_due   INTEGER,
    last_due   INTEGER,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX periodic_job_next_due ON periodic_job (next_due) WHERE NOT paused;
