-- Fair limits: the jobs that wait for a permit of one key take turns by a second key, for example by tenant.

INSERT INTO schema_version (version, readable_by) VALUES (17, 1);

-- NULL: the limit is not fair, or the program is older. `seq` is then the creation order of the job, otherwise its turn.
ALTER TABLE waiting_job ADD COLUMN fair_key TEXT CHECK (length(CAST(fair_key AS BLOB)) <= 512);
CREATE INDEX waiting_job_fair ON waiting_job (limit_name, key, fair_key, seq)
    WHERE fair_key IS NOT NULL AND woken_at IS NULL;
