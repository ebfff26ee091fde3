-- A minimal table of jobs in the shape of Jobwire's: the columns for creation, lock and deletion, about 450 bytes a
-- row, one index. The table batch holds the ids of each batch in place of hints.
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
-- Plain: a compressed or out-of-line array would add a cost that a received message does not have.
ALTER TABLE batch ALTER ids SET STORAGE PLAIN;
-- UUID version 7: the time comes first, so rows created together are neighbours in the index.
INSERT INTO batch
    SELECT n / :size, array_agg(overlay(gen_random_uuid()::text PLACING '019a9e7c-' || lpad(to_hex(n / 4096), 4, '0') FROM 1 FOR 13)::uuid
                                ORDER BY n)
    FROM generate_series(0, :jobs - 1) AS given(n) GROUP BY n / :size;
VACUUM ANALYZE batch;
