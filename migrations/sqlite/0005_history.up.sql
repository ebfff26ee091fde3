-- Ends of instances, attempts and incidents.
--
--   * Indexes find the jobs of an instance or an execution that ends. Only jobs that have these fields are in them.
--   * The table `attempt` has the attempts of the types that record them; nobody else writes it.
--   * The table `incident` has the dead letters of the present and of the past. Triggers of dead_letter_job keep it, so that it
--     is exact whichever program moves the job.

INSERT INTO schema_version (version, readable_by) VALUES (5, 1);

-- job_siblings finds the exclusive jobs of an instance.
CREATE INDEX job_instance ON job (process_instance) WHERE NOT exclusive AND process_instance IS NOT NULL;
CREATE INDEX job_execution ON job (execution) WHERE execution IS NOT NULL;
CREATE INDEX timer_job_instance ON timer_job (process_instance) WHERE process_instance IS NOT NULL;
CREATE INDEX timer_job_execution ON timer_job (execution) WHERE execution IS NOT NULL;

-- The attempts of jobs whose types record them. A fence is one lock of one job, so it is one attempt. The transaction that ends
-- the attempt writes its row; the leader deletes it after `keep_until`.
CREATE TABLE attempt (
    fence            INTEGER NOT NULL PRIMARY KEY,
    job_id           TEXT    NOT NULL,
    type             TEXT    NOT NULL,
    process_instance TEXT,
    tenant           TEXT,
    node             TEXT    NOT NULL,
    started_at       INTEGER NOT NULL,
    ended_at         INTEGER NOT NULL,
    outcome          TEXT    NOT NULL,
    message          TEXT,
    stack            TEXT,
    keep_until       INTEGER NOT NULL
) STRICT;
CREATE INDEX attempt_job ON attempt (job_id, fence);
CREATE INDEX attempt_keep_until ON attempt (keep_until);
CREATE INDEX attempt_error ON attempt (type, ended_at) WHERE message IS NOT NULL;

-- Dead letters of the present (resolved_at is null) and of the past.
CREATE TABLE incident (
    job_id             TEXT    NOT NULL,
    opened_at          INTEGER NOT NULL,
    type               TEXT    NOT NULL,
    process_instance   TEXT,
    process_definition TEXT,
    element            TEXT,
    tenant             TEXT,
    message            TEXT,
    resolved_at        INTEGER,
    -- `revived`, `deleted`, or NULL while it is open.
    resolution         TEXT,
    PRIMARY KEY (job_id, opened_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX incident_open ON incident (opened_at) WHERE resolved_at IS NULL;
CREATE INDEX incident_resolved ON incident (resolved_at) WHERE resolved_at IS NOT NULL;

CREATE TRIGGER open_incident AFTER INSERT ON dead_letter_job
BEGIN
    INSERT INTO incident (job_id, opened_at, type, process_instance, process_definition, element, tenant, message)
    VALUES (NEW.id, CAST(unixepoch('subsec') * 1000000 AS INTEGER), NEW.type, NEW.process_instance, NEW.process_definition,
        NEW.element, NEW.tenant, NEW.exception_message)
    ON CONFLICT (job_id, opened_at) DO UPDATE SET message = excluded.message, resolved_at = NULL, resolution = NULL;
END;
-- A revival puts the job into another table before it deletes the dead letter.
CREATE TRIGGER resolve_incident AFTER DELETE ON dead_letter_job
BEGIN
    UPDATE incident SET resolved_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER),
        resolution = CASE WHEN EXISTS (SELECT 1 FROM job j WHERE j.id = OLD.id) THEN 'revived' ELSE 'deleted' END
    WHERE job_id = OLD.id AND resolved_at IS NULL;
END;

INSERT OR IGNORE INTO incident (job_id, opened_at, type, process_instance, process_definition, element, tenant, message)
SELECT id, ready_at, type, process_instance, process_definition, element, tenant, exception_message FROM dead_letter_job;
