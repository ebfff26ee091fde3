-- Batches: jobs whose common end creates another job.
--
--   * The table `batch` has the batches, with the job that is created at the end as a template.
--   * The table `batch_member` has the members. A member is present as long as its job stands in a table of jobs, so the end of
--     a job writes nothing here.
--
-- A program that does not know these tables runs members as other jobs. The leader ends their batches.

INSERT INTO schema_version (version, readable_by) VALUES (11, 1);

CREATE TABLE batch (
    id              TEXT    NOT NULL PRIMARY KEY CONSTRAINT "id is a UUID in lower case"
        CHECK (id GLOB '????????-????-????-????-????????????' AND id NOT GLOB '*[^-0-9a-f]*' AND length(replace(id, '-', '')) = 32),
    name            TEXT    NOT NULL CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 256),
    -- The id that the job at the end gets, also of a batch without one.
    callback_id     TEXT    NOT NULL UNIQUE CONSTRAINT "callback_id is a UUID in lower case"
        CHECK (callback_id GLOB '????????-????-????-????-????????????' AND callback_id NOT GLOB '*[^-0-9a-f]*' AND length(replace(callback_id, '-', '')) = 32),
    -- The fields of that job, until the end.
    callback        TEXT,
    -- Whether dead letters count as ended.
    or_dead_letters INTEGER NOT NULL DEFAULT 0,
    -- The members that have left batch_member.
    departed        INTEGER NOT NULL DEFAULT 0 CHECK (departed BETWEEN 0 AND 4611686018427387903),
    -- The members that were dead letters at the end.
    dead_letters    INTEGER NOT NULL DEFAULT 0 CHECK (dead_letters BETWEEN 0 AND 4611686018427387903),
    created_at      INTEGER NOT NULL CONSTRAINT "created_at is a moment" CHECK (created_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    ended_at        INTEGER CONSTRAINT "ended_at is a moment" CHECK (ended_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    cancelled       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX batch_open ON batch (id) WHERE ended_at IS NULL;
CREATE INDEX batch_ended ON batch (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE batch_member (
    batch_id TEXT NOT NULL,
    job_id   TEXT NOT NULL,
    PRIMARY KEY (batch_id, job_id)
) STRICT, WITHOUT ROWID;
