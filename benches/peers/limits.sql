-- A minimal table of jobs in the shape of Jobwire's: what a message, its lock and a deletion need, about 450 bytes a
-- row, one index. And the ids of each batch, which stand for the hints: who holds one knows what to lock.
-- Variables: jobs, size (rows of a batch).
CREATE TABLE job (
    id uuid PRIMARY KEY,
    type text NOT NULL,
    payload json NOT NULL,
    process_instance text,
    correlation_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retries integer NOT NULL DEFAULT 3,
    lock_owner uuid,
    lock_expires_at timestamptz,
    fence bigint NOT NULL DEFAULT 0
);
CREATE TABLE batch (n integer PRIMARY KEY, ids uuid[] NOT NULL);
-- Plain: an array that is compressed or stored elsewhere would cost what a message in hand does not.
ALTER TABLE batch ALTER ids SET STORAGE PLAIN;
-- Version 7: the time in front, so that neighbours in time are neighbours in the index.
INSERT INTO batch
    SELECT n / :size, array_agg(overlay(gen_random_uuid()::text PLACING '019a9e7c-' || lpad(to_hex(n / 4096), 4, '0') FROM 1 FOR 13)::uuid
                                ORDER BY n)
    FROM generate_series(0, :jobs - 1) AS given(n) GROUP BY n / :size;
VACUUM ANALYZE batch;
