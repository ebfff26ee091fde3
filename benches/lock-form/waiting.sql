-- A backlog of a million ready jobs. The last 1,000 are locked, and 300 of these locks have expired.
-- The psql variable `form` is `lease` or `columns`.
INSERT INTO jobwire.job (id, type, payload, correlation_id, origin, hints)
    SELECT jobwire.uuid_v7(), 'noop', json_build_object('filler', repeat('x', 180)), gen_random_uuid(), 'hook', 1
    FROM generate_series(1, 1000000);
CREATE TABLE flight AS
    SELECT id, row_number() OVER () <= 300 AS expired, nextval('jobwire.fence_seq') AS fence
    FROM (SELECT id FROM jobwire.job ORDER BY seq DESC LIMIT 1000) j;
SELECT :'form' = 'lease' AS leases \gset
\if :leases
INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
    SELECT id, '00000000-0000-4000-8000-000000000001', fence, now(), now() + CASE WHEN expired THEN interval '-1 minute' ELSE '1 day' END FROM flight;
\else
UPDATE jobwire.job j SET lock_owner = '00000000-0000-4000-8000-000000000001', lock_fence = f.fence,
    lock_expires_at = now() + CASE WHEN expired THEN interval '-1 minute' ELSE '1 day' END
    FROM flight f WHERE f.id = j.id;
\endif
VACUUM ANALYZE;
CHECKPOINT;
