-- One batch of 256 jobs from insert to deletion, locked in columns of the job. The lock is a plain guarded
-- UPDATE without SKIP LOCKED and order, which a real lock would need. This favours this form.
SELECT array_agg(jobwire.uuid_v7())::text AS ids FROM generate_series(1, 256) \gset
INSERT INTO jobwire.job (id, type, payload, correlation_id, origin, hints)
    SELECT id, 'noop', json_build_object('filler', repeat('x', 180)), id, 'hook', 1 FROM unnest(:ids::uuid[]) AS given(id);
UPDATE jobwire.job j
    SET lock_owner = '00000000-0000-4000-8000-000000000001'::uuid, lock_fence = nextval('jobwire.fence_seq'),
        lock_expires_at = clock_timestamp() + interval '30 seconds'
    WHERE j.id = ANY(:ids::uuid[]) AND NOT j.exclusive AND j.type = ANY('{noop}'::text[])
      AND NOT EXISTS (SELECT FROM jobwire.suspension s WHERE (s.scope = 'process_instance' AND s.value = j.process_instance)
         OR (s.scope = 'process_definition' AND s.value = j.process_definition) OR (s.scope = 'type' AND s.value = j.type)
         OR (s.scope = 'tenant' AND s.value = j.tenant))
      AND (j.lock_owner IS NULL OR j.lock_expires_at <= clock_timestamp())
    RETURNING j.*;
SELECT array_agg(lock_fence ORDER BY id)::text AS fences, array_agg(id ORDER BY id)::text AS held
    FROM jobwire.job WHERE id = ANY(:ids::uuid[]) \gset
WITH held AS (
    DELETE FROM jobwire.job j
    USING unnest(:held::uuid[], :fences::bigint[]) AS d(id, fence)
    WHERE j.id = d.id AND j.lock_fence = d.fence AND j.lock_owner = '00000000-0000-4000-8000-000000000001'::uuid AND j.lock_expires_at > clock_timestamp()
    RETURNING j.id
), forgotten AS (
    DELETE FROM jobwire.job_exception e USING held WHERE e.job_id = held.id AND e.job_id = ANY('{}'::uuid[])
)
SELECT id FROM held;
