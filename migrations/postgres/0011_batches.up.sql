-- Batches: jobs whose common end creates another job.
--
--   * The table `batch` has the batches, with the job that is created at the end as a template. Its row is the lock under which
--     a batch ends: who adds members shares it, and who ends the batch has it alone.
--   * The table `batch_member` has the members. A member is present as long as its job stands in a table of jobs, so the end of
--     a job writes nothing here.
--
-- A program that does not know these tables runs members as other jobs. The leader ends their batches.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (11, 1);

CREATE TABLE jobwire.batch (
    id               uuid        NOT NULL PRIMARY KEY,
    name             text        NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 256),
    -- The id that the job at the end gets, also of a batch without one.
    callback_id      uuid        NOT NULL UNIQUE,
    -- The fields of that job, until the end.
    callback         json,
    -- Whether dead letters count as ended.
    or_dead_letters  boolean     NOT NULL DEFAULT false,
    -- The members that have left batch_member.
    departed         bigint      NOT NULL DEFAULT 0 CHECK (departed BETWEEN 0 AND 4611686018427387903),
    -- The members that were dead letters at the end.
    dead_letters     bigint      NOT NULL DEFAULT 0 CHECK (dead_letters BETWEEN 0 AND 4611686018427387903),
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at         timestamptz,
    cancelled        boolean     NOT NULL DEFAULT false,
    CONSTRAINT dates_are_finite CHECK (isfinite(created_at) AND created_at < timestamptz '262143-01-01 00:00+00'
        AND coalesce(isfinite(ended_at) AND ended_at < timestamptz '262143-01-01 00:00+00', true))
);
CREATE INDEX batch_open ON jobwire.batch (id) WHERE ended_at IS NULL;
CREATE INDEX batch_ended ON jobwire.batch (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE jobwire.batch_member (
    batch_id uuid NOT NULL,
    job_id   uuid NOT NULL,
    PRIMARY KEY (batch_id, job_id)
);

-- Whether a member is present: its job stands in a table of jobs, or will, as the job at the end of an open batch. A function,
-- because the planner would read whole tables for a plain query.
CREATE FUNCTION jobwire.is_present(job_id uuid, as_dead_letter boolean) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM jobwire.job j WHERE j.id = is_present.job_id)
        OR EXISTS (SELECT FROM jobwire.timer_job t WHERE t.id = is_present.job_id)
        OR EXISTS (SELECT FROM jobwire.suspended_job s WHERE s.id = is_present.job_id)
        OR as_dead_letter AND EXISTS (SELECT FROM jobwire.dead_letter_job d WHERE d.id = is_present.job_id)
        OR EXISTS (SELECT FROM jobwire.batch b WHERE b.callback_id = is_present.job_id AND b.ended_at IS NULL)
$$;

-- Create a batch, in the caller's own transaction. Add its first jobs in the same one: a batch without members ends.
--   SELECT jobwire.add_to_batch(jobwire.create_batch('import', '{"type": "report"}'), jobwire.create_job(type => 'row'));
-- `callback` has the fields of the job at the end by the names of create_job: type, payload, process_instance and so on.
CREATE FUNCTION jobwire.create_batch(name text, callback json DEFAULT NULL, or_dead_letters boolean DEFAULT false) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    new_id uuid := jobwire.uuid_v7();
    its_id uuid := jobwire.uuid_v7();
    its    jsonb := callback;
    field  text;
BEGIN
    IF octet_length(coalesce(name, '')) NOT BETWEEN 1 AND 256 THEN
        PERFORM jobwire.refuse('name', 'has not 1 to 256 bytes', 'name what the batch is for');
    END IF;
    IF its IS NOT NULL THEN
        IF jsonb_typeof(its) <> 'object' THEN
            PERFORM jobwire.refuse('callback', 'is not a JSON object', 'give the fields of a job, such as {"type": "report"}');
        END IF;
        FOR field IN SELECT jsonb_object_keys(its) EXCEPT SELECT unnest(ARRAY['type', 'payload', 'process_instance', 'exclusive',
            'retries', 'retry_policy', 'priority', 'lane', 'execution', 'process_definition', 'element', 'tenant', 'category',
            'deployment', 'correlation_id', 'custom_values', 'trace_parent'])
        LOOP
            PERFORM jobwire.refuse('callback', format('has the field `%s`, which the job of a batch can''t have', field), 'leave it out');
        END LOOP;
        FOR field IN SELECT e.key FROM json_each(callback) e GROUP BY e.key
            HAVING count(*) > 1 OR bool_or(json_typeof(e.value) <> 'null' AND CASE
                WHEN e.key IN ('payload', 'custom_values') THEN false
                WHEN e.key = 'exclusive' THEN json_typeof(e.value) <> 'boolean'
                WHEN e.key IN ('retries', 'priority') THEN e.value::text !~ '^-?[0-9]+$'
                WHEN e.key = 'correlation_id' THEN e.value::text !~* '^"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"$'
                ELSE json_typeof(e.value) <> 'string' END)
        LOOP
            PERFORM jobwire.refuse('callback', format('has the field `%s` twice, or of another kind', field),
                'give texts in quotes, numbers without them, each field once');
        END LOOP;
        IF octet_length(callback::text) > 1000000 THEN
            PERFORM jobwire.refuse('callback', 'has more than 1000000 bytes', 'store the data apart and put its key here');
        END IF;
        IF coalesce(jsonb_typeof(its -> 'custom_values'), 'object') NOT IN ('object', 'null') THEN
            PERFORM jobwire.refuse('callback', 'has custom values that are no object', 'give an object, or none');
        END IF;
        -- A job that can't be created is refused now, and not at the end.
        BEGIN
            PERFORM jobwire.new_job(type => its ->> 'type', payload => callback -> 'payload',
                process_instance => its ->> 'process_instance', exclusive => (its ->> 'exclusive')::boolean, due_at => NULL,
                retries => (its ->> 'retries')::integer, retry_policy => its ->> 'retry_policy',
                priority => (its ->> 'priority')::bigint, lane => its ->> 'lane', execution => its ->> 'execution',
                process_definition => its ->> 'process_definition', element => its ->> 'element', tenant => its ->> 'tenant',
                category => its ->> 'category', deployment => its ->> 'deployment', repeat => NULL, repeat_until => NULL,
                correlation_id => (its ->> 'correlation_id')::uuid, custom_values => NULL, trace_parent => its ->> 'trace_parent');
            RAISE EXCEPTION USING ERRCODE = 'JW011';
        EXCEPTION WHEN SQLSTATE 'JW011' THEN
            NULL;
        END;
    END IF;
    INSERT INTO jobwire.batch (id, name, callback_id, callback, or_dead_letters)
    VALUES (new_id, name, its_id, callback, coalesce(or_dead_letters, false));
    RETURN new_id;
END
$$;

-- Add a job to an open batch, in the transaction that creates the job. Returns the job.
CREATE FUNCTION jobwire.add_to_batch(batch uuid, job uuid) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    mark text := format('"$batch":"%s"}', batch);
BEGIN
    PERFORM FROM jobwire.batch b WHERE b.id = batch AND b.ended_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        PERFORM jobwire.refuse('batch', format('is %s, which has ended, was cancelled, or does not exist', batch),
            'create a batch, or create the job without one');
    END IF;
    -- The mark tells the node that runs the job of its batch. A job that is older than this transaction may have ended.
    UPDATE jobwire.job j SET custom_values = (CASE
        WHEN j.custom_values IS NULL THEN '{' || mark
        WHEN btrim(j.custom_values::text, E' \t\n\r') ~ '^\{[ \t\n\r]*\}$' THEN '{' || mark
        ELSE regexp_replace(j.custom_values::text, '\}[ \t\n\r]*$', ',') || mark END)::json
    WHERE j.id = job AND j.created_at >= now() AND j.repeat IS NULL
        AND (j.custom_values IS NULL OR json_typeof(j.custom_values) = 'object');
    IF NOT FOUND THEN
        UPDATE jobwire.timer_job j SET custom_values = (CASE
            WHEN j.custom_values IS NULL THEN '{' || mark
            WHEN btrim(j.custom_values::text, E' \t\n\r') ~ '^\{[ \t\n\r]*\}$' THEN '{' || mark
            ELSE regexp_replace(j.custom_values::text, '\}[ \t\n\r]*$', ',') || mark END)::json
        WHERE j.id = job AND j.created_at >= now() AND j.repeat IS NULL
            AND (j.custom_values IS NULL OR json_typeof(j.custom_values) = 'object');
    END IF;
    IF NOT FOUND THEN
        PERFORM jobwire.refuse('job', format('is %s, which this transaction did not create, which repeats, or whose custom values are no object', job),
            'give a job that create_job has just returned');
    END IF;
    INSERT INTO jobwire.batch_member (batch_id, job_id) VALUES (batch, job) ON CONFLICT DO NOTHING;
    RETURN job;
END
$$;

-- Who may create jobs may create batches, add to them and keep them open, but reads no template. Who runs jobs may do here what
-- they may do with dead letters.
REVOKE ALL ON FUNCTION jobwire.is_present, jobwire.create_batch, jobwire.add_to_batch FROM PUBLIC;
DO $$
DECLARE
    held    record;
    door    record;
    creator text;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role,
            CASE c.relname WHEN 'job' THEN 'SELECT (id, ended_at), INSERT, UPDATE (departed)' ELSE a.privilege_type END AS on_batch,
            a.privilege_type AS on_member
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.job'::regclass AND a.privilege_type = 'INSERT'
            OR c.oid = 'jobwire.dead_letter_job'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.batch TO %s', held.on_batch, held.role);
        EXECUTE format('GRANT %s ON jobwire.batch_member TO %s', held.on_member, held.role);
        EXECUTE format('GRANT EXECUTE ON FUNCTION jobwire.is_present TO %s', held.role);
    END LOOP;
    SELECT p.proowner::regrole::text AS owner, p.proacl AS acl INTO STRICT door
    FROM pg_proc p WHERE p.pronamespace = 'jobwire'::regnamespace AND p.proname = 'create_job' ORDER BY p.oid LIMIT 1;
    FOR creator IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM aclexplode(door.acl) a WHERE a.privilege_type = 'EXECUTE'
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION jobwire.create_batch, jobwire.add_to_batch TO %s', creator);
    END LOOP;
    BEGIN
        IF door.owner <> current_user THEN
            EXECUTE format('GRANT CREATE ON SCHEMA jobwire TO %s', door.owner);
            EXECUTE format('ALTER FUNCTION jobwire.create_batch OWNER TO %s', door.owner);
            EXECUTE format('REVOKE CREATE ON SCHEMA jobwire FROM %s', door.owner);
        END IF;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE WARNING 'create_batch runs with the rights of %: %', current_user, SQLERRM
            USING HINT = 'docs/operating/databases.md says what an administrator can do.';
    END;
END
$$;
