-- Batches: jobs whose common end creates another job.
--
--   * The table `batch` has the batches, with the job that is created at the end as a template.
--   * The table `batch_member` has the members. A member is present as long as its job stands in a table of jobs, so the end of
--     a job writes nothing here.
--
-- A program that does not know these tables runs members as other jobs. The leader ends their batches.

INSERT INTO schema_version (version, readable_by) VALUES (11, 1);

CREATE TABLE batch (
    id              TEXT    NOT NULL PRIMARY KEY,
    name            TEXT    NOT NULL CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 256),
    -- The id that the job at the end gets, also of a batch without one.
    callback_id     TEXT    NOT NULL UNIQUE,
    -- The fields of that job, until the end.
    callback        TEXT,
    -- Whether dead letters count as ended.
    or_dead_letters INTEGER NOT NULL DEFAULT 0,
    -- The members that have left batch_member.
    departed        INTEGER NOT NULL DEFAULT 0,
    -- The members that were dead letters at the end.
    dead_letters    INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL,
    ended_at        INTEGER,
    cancelled       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX batch_open ON batch (id) WHERE ended_at IS NULL;
CREATE INDEX batch_ended ON batch (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE batch_member (
    batch_id TEXT NOT NULL,
    job_id   TEXT NOT NULL,
    PRIMARY KEY (batch_id, job_id)
) STRICT, WITHOUT ROWID;
