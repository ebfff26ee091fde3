-- Jobs that operations made ready in a process that publishes no hints. A leader hints them in its next cycle.

INSERT INTO schema_version (version, readable_by) VALUES (18, 1);

-- A row of a job that is gone is deleted by the leader.
CREATE TABLE unannounced_job (
    job_id   TEXT    NOT NULL PRIMARY KEY,
    noted_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
