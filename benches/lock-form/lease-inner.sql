-- As lease.sql, but LOCK ends with an inner join, as before this measurement. The planner estimates one row
-- for each side and compares every pair, 65,536 in a batch of 256.
SELECT array_agg(jobwire.uuid_v7())::text AS ids FROM generate_series(1, 256) \gset
INSERT INTO jobwire.job (id, type, payload, correlation_id, origin, hints)
    SELECT id, 'noop', json_build_object('filler', repeat('x', 180)), id, 'hook', 1 FROM unnest(:ids::uuid[]) AS given(id);
WITH ready AS MATERIALIZED (
    SELECT j.* FROM jobwire.job j
    WHERE j.id = ANY(:ids::uuid[]) AND NOT j.exclusive AND j.type = ANY('{noop}'::text[])
      AND NOT EXISTS (SELECT FROM jobwire.suspension s WHERE (s.scope = 'process_instance' AND s.value = j.process_instance)
         OR (s.scope = 'process_definition' AND s.value = j.process_definition) OR (s.scope = 'type' AND s.value = j.type)
         OR (s.scope = 'tenant' AND s.value = j.tenant))
      AND NOT EXISTS (SELECT FROM jobwire.job_lease l WHERE l.job_id = j.id AND l.owner IS NOT NULL AND l.expires_at > clock_timestamp())
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
), leased AS (
    INSERT INTO jobwire.job_lease AS l (job_id, owner, fence, locked_at, expires_at)
    SELECT id, '00000000-0000-4000-8000-000000000001'::uuid, nextval('jobwire.fence_seq'), clock_timestamp(), clock_timestamp() + interval '30 seconds'
    FROM ready
    ON CONFLICT (job_id) DO UPDATE
        SET owner = excluded.owner, fence = excluded.fence, locked_at = excluded.locked_at,
            expires_at = excluded.expires_at, started_at = NULL,
            strikes = l.strikes + CASE WHEN l.owner IS NULL THEN 0 ELSE 1 END
        WHERE l.owner IS NULL OR l.expires_at <= clock_timestamp()
    RETURNING l.job_id, l.fence, l.strikes
)
SELECT leased.fence, leased.strikes, ready.*
FROM ready JOIN leased ON leased.job_id = ready.id
ORDER BY ready.seq;
SELECT array_agg(fence ORDER BY job_id)::text AS fences, array_agg(job_id ORDER BY job_id)::text AS held
    FROM jobwire.job_lease WHERE job_id = ANY(:ids::uuid[]) \gset
WITH held AS (
    DELETE FROM jobwire.job_lease l
    USING unnest(:held::uuid[], :fences::bigint[]) AS d(id, fence)
    WHERE l.job_id = d.id AND l.fence = d.fence AND l.owner = '00000000-0000-4000-8000-000000000001'::uuid AND l.expires_at > clock_timestamp()
    RETURNING l.job_id
), forgotten AS (
    DELETE FROM jobwire.job_exception e USING held WHERE e.job_id = held.job_id AND e.job_id = ANY('{}'::uuid[])
)
DELETE FROM jobwire.job j USING held WHERE j.id = held.job_id
RETURNING j.id;
