-- An index for jobs without a turn among those that wait for a fair limit.

INSERT INTO schema_version (version, readable_by) VALUES (19, 1);

-- Whether a job without a turn waits for a key is asked whenever a job of a fair limit begins to wait. The index of all that wait
-- would read each job with a turn that stands before. By EXPLAIN, this one answers with one entry, for its order by seq also if
-- most waiting jobs have no turn.
CREATE INDEX waiting_job_without_turn ON waiting_job (limit_name, key, seq)
    WHERE fair_key IS NULL AND woken_at IS NULL;
