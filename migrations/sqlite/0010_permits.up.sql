-- Limits: at most a number of jobs with one key run at once in a fleet.
--
--   * The table `permit_key` has the keys that were used lately.
--   * The table `permit` has the permits that each node has borrowed. The sum over the nodes never exceeds the size of the limit.
--   * The table `waiting_job` has the jobs that wait for a permit. Such a job stays in the executable table, without a lease.
--
-- A program that does not know these tables runs jobs without a limit.

INSERT INTO schema_version (version, readable_by) VALUES (10, 1);

CREATE TABLE permit_key (
    limit_name TEXT    NOT NULL CHECK (length(CAST(limit_name AS BLOB)) <= 1024),
    key        TEXT    NOT NULL CHECK (length(CAST(key AS BLOB)) <= 1024),
    size       INTEGER NOT NULL CHECK (size > 0),
    used_at    INTEGER NOT NULL,
    PRIMARY KEY (limit_name, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE permit (
    limit_name TEXT    NOT NULL CHECK (length(CAST(limit_name AS BLOB)) <= 1024),
    key        TEXT    NOT NULL CHECK (length(CAST(key AS BLOB)) <= 1024),
    node       TEXT    NOT NULL,
    number     INTEGER NOT NULL CHECK (number > 0),
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (limit_name, key, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX permit_expires ON permit (expires_at);

CREATE TABLE waiting_job (
    job_id     TEXT    NOT NULL PRIMARY KEY,
    limit_name TEXT    NOT NULL CHECK (length(CAST(limit_name AS BLOB)) <= 1024),
    key        TEXT    NOT NULL CHECK (length(CAST(key AS BLOB)) <= 1024),
    type       TEXT    NOT NULL CHECK (length(CAST(type AS BLOB)) <= 1024),
    -- The creation order of the job.
    seq        INTEGER NOT NULL,
    -- When the job was hinted because a permit was free. NULL: it waits.
    woken_at   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX waiting_job_next ON waiting_job (limit_name, key, seq) WHERE woken_at IS NULL;
CREATE INDEX waiting_job_woken ON waiting_job (limit_name, key, woken_at) WHERE woken_at IS NOT NULL;
