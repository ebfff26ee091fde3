-- Unique jobs: at most one job has a key.
--
--   * The table `unique_job` has the job that has each key. Only jobs with a key have rows. A key is free again when its job has
--     left the tables of jobs, so the end of a job writes nothing here. The leader deletes the rows of free keys.
--   * The table `unique_dead_letter` has the dead letters whose keys other jobs have taken. It keeps such a dead letter from
--     being revived beside the job that has its key.

INSERT INTO schema_version (version, readable_by) VALUES (8, 1);

-- `type` is '' for a key that all types share. `tenant` is '' for such a key, and for jobs without a tenant.
CREATE TABLE unique_job (
    type         TEXT    NOT NULL CHECK (length(CAST(type AS BLOB)) <= 1024),
    tenant       TEXT    NOT NULL CHECK (length(CAST(tenant AS BLOB)) <= 1024),
    key          TEXT    NOT NULL CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 512),
    job_id       TEXT    NOT NULL,
    -- Until then the job has the key, whatever becomes of it. NULL: as long as it is pending.
    held_until   INTEGER,
    -- Whether a dead letter has its key, too.
    dead_letters INTEGER NOT NULL,
    -- When a program last saw that the key was taken.
    seen_at      INTEGER NOT NULL,
    PRIMARY KEY (type, tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX unique_job_seen ON unique_job (seen_at);

CREATE TABLE unique_dead_letter (
    job_id TEXT NOT NULL PRIMARY KEY,
    type   TEXT NOT NULL,
    tenant TEXT NOT NULL,
    key    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER key_taken AFTER UPDATE OF job_id ON unique_job WHEN OLD.job_id <> NEW.job_id AND OLD.held_until IS NULL
BEGIN
    INSERT OR IGNORE INTO unique_dead_letter (job_id, type, tenant, key)
    SELECT OLD.job_id, OLD.type, OLD.tenant, OLD.key WHERE EXISTS (SELECT 1 FROM dead_letter_job d WHERE d.id = OLD.job_id);
END;

-- A revived dead letter takes its key back, or stays where it is. A revival puts the job into another table before it deletes
-- the dead letter.
CREATE TRIGGER take_key_back AFTER DELETE ON dead_letter_job
WHEN EXISTS (SELECT 1 FROM unique_dead_letter f WHERE f.job_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'another job has the unique key of this one now; complete or delete it, then try again')
    FROM unique_dead_letter f JOIN unique_job u ON u.type = f.type AND u.tenant = f.tenant AND u.key = f.key
    WHERE f.job_id = OLD.id AND u.job_id <> OLD.id
        AND (EXISTS (SELECT 1 FROM job j WHERE j.id = OLD.id) OR EXISTS (SELECT 1 FROM timer_job t WHERE t.id = OLD.id)
            OR EXISTS (SELECT 1 FROM suspended_job s WHERE s.id = OLD.id))
        AND CASE WHEN u.held_until IS NOT NULL THEN u.held_until > CAST(unixepoch('subsec') * 1000000 AS INTEGER)
        ELSE EXISTS (SELECT 1 FROM job j WHERE j.id = u.job_id) OR EXISTS (SELECT 1 FROM timer_job t WHERE t.id = u.job_id)
            OR EXISTS (SELECT 1 FROM suspended_job s WHERE s.id = u.job_id)
            OR u.dead_letters AND EXISTS (SELECT 1 FROM dead_letter_job d WHERE d.id = u.job_id) END;
    INSERT INTO unique_job (type, tenant, key, job_id, dead_letters, seen_at)
    SELECT f.type, f.tenant, f.key, OLD.id, 0, CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM unique_dead_letter f
    WHERE f.job_id = OLD.id
        AND (EXISTS (SELECT 1 FROM job j WHERE j.id = OLD.id) OR EXISTS (SELECT 1 FROM timer_job t WHERE t.id = OLD.id)
            OR EXISTS (SELECT 1 FROM suspended_job s WHERE s.id = OLD.id))
    ON CONFLICT (type, tenant, key) DO UPDATE SET job_id = excluded.job_id, held_until = NULL, dead_letters = 0,
        seen_at = excluded.seen_at;
    DELETE FROM unique_dead_letter WHERE job_id = OLD.id;
END;
