-- A row that any writer may write stops no other row.
--
--   * set_aside moves a row that no statement can work with to the dead letters; the move itself cannot fail.
--   * Checks bound the length, the size and the range of every field. They never judge syntax: what an older program
--     writes still fits. Rows that do not fit are set aside first.
--   * create_job checks what the library checks, with the same messages, and needs no right on the tables.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (2, 1);

-- The fence of the holder against whom the last strike was counted.
ALTER TABLE jobwire.job_lease ADD COLUMN struck bigint;

-- The beginning of a text, in at most so many bytes. A character has at most four.
CREATE FUNCTION jobwire.cut(value text, bytes integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(value) <= bytes THEN value ELSE left(value, bytes / 4) END
$$;

-- Move rows of a job table to the dead letters, whatever is in them. Values that do not fit are cut, or replaced where a
-- part would mean something else. The row as it was becomes the stack, as JSON; a text counts there with its first
-- 1 MiB, a JSON value of more than 64 MiB too. A row whose id stands in another table as well gets a new id. The lease of
-- an executable job goes with it. Returns each row's id, and the id of its dead letter.
CREATE FUNCTION jobwire.set_aside(source text, ids uuid[], reason text)
RETURNS TABLE (job_id uuid, dead_letter_id uuid)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    wrong record;
    was   text;
BEGIN
    IF source IS NULL OR source NOT IN ('job', 'timer_job', 'suspended_job', 'dead_letter_job') THEN
        RAISE EXCEPTION 'set_aside: "source" is %; name a job table', quote_nullable(source)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR wrong IN EXECUTE format(
        'DELETE FROM jobwire.%I WHERE id = ANY($1) RETURNING id, seq, revision, kind, type, payload, process_instance, execution,
            process_definition, element, tenant, category, deployment, priority, exclusive, retries, failures, retry_policy,
            due_at, repeat, repeat_until, correlation_id, created_at, lane, origin, exception_message, custom_values,
            trace_parent, ready_at, hints', source) USING ids
    LOOP
        job_id := wrong.id;
        dead_letter_id := wrong.id;
        was := json_build_object(
            'table', source, 'id', wrong.id, 'seq', wrong.seq, 'revision', wrong.revision, 'kind', wrong.kind,
            'type', jobwire.cut(wrong.type, 1048576),
            'payload', CASE WHEN octet_length(wrong.payload::text) <= 67108864 THEN wrong.payload
                            ELSE to_json(jobwire.cut(wrong.payload::text, 1048576)) END,
            'process_instance', jobwire.cut(wrong.process_instance, 1048576),
            'execution', jobwire.cut(wrong.execution, 1048576),
            'process_definition', jobwire.cut(wrong.process_definition, 1048576),
            'element', jobwire.cut(wrong.element, 1048576),
            'tenant', jobwire.cut(wrong.tenant, 1048576),
            'category', jobwire.cut(wrong.category, 1048576),
            'deployment', jobwire.cut(wrong.deployment, 1048576),
            'priority', wrong.priority, 'exclusive', wrong.exclusive, 'retries', wrong.retries, 'failures', wrong.failures,
            'retry_policy', jobwire.cut(wrong.retry_policy, 1048576),
            'due_at', wrong.due_at,
            'repeat', jobwire.cut(wrong.repeat, 1048576),
            'repeat_until', wrong.repeat_until, 'correlation_id', wrong.correlation_id, 'created_at', wrong.created_at,
            'lane', jobwire.cut(wrong.lane, 1048576),
            'origin', jobwire.cut(wrong.origin, 1048576),
            'exception_message', jobwire.cut(wrong.exception_message, 1048576),
            'custom_values', CASE WHEN octet_length(wrong.custom_values::text) <= 67108864 THEN wrong.custom_values
                                  ELSE to_json(jobwire.cut(wrong.custom_values::text, 1048576)) END,
            'trace_parent', jobwire.cut(wrong.trace_parent, 1048576),
            'ready_at', wrong.ready_at, 'hints', wrong.hints)::text;
        LOOP
            IF EXISTS (SELECT FROM jobwire.job j WHERE j.id = dead_letter_id)
                OR EXISTS (SELECT FROM jobwire.timer_job t WHERE t.id = dead_letter_id)
                OR EXISTS (SELECT FROM jobwire.suspended_job s WHERE s.id = dead_letter_id)
            THEN
                dead_letter_id := jobwire.uuid_v7();
            END IF;
            INSERT INTO jobwire.dead_letter_job AS d (id, seq, revision, kind, type, payload, process_instance, execution,
                process_definition, element, tenant, category, deployment, priority, exclusive, retries, failures, retry_policy,
                due_at, repeat, repeat_until, correlation_id, created_at, lane, origin, exception_message, custom_values,
                trace_parent, ready_at, hints)
            VALUES (dead_letter_id, wrong.seq, least(greatest(wrong.revision, 0), 999999999) + 1, wrong.kind,
                jobwire.cut(wrong.type, 1024),
                CASE WHEN octet_length(wrong.payload::text) <= 1048576 THEN wrong.payload ELSE 'null' END,
                jobwire.cut(wrong.process_instance, 1024), jobwire.cut(wrong.execution, 1024),
                jobwire.cut(wrong.process_definition, 1024), jobwire.cut(wrong.element, 1024), jobwire.cut(wrong.tenant, 1024),
                jobwire.cut(wrong.category, 1024), jobwire.cut(wrong.deployment, 1024), wrong.priority, wrong.exclusive, 0,
                least(greatest(wrong.failures, 0), 1000000000),
                CASE WHEN octet_length(wrong.retry_policy) <= 1024 THEN wrong.retry_policy END, wrong.due_at,
                CASE WHEN octet_length(wrong.repeat) <= 1024 THEN wrong.repeat END, wrong.repeat_until, wrong.correlation_id,
                wrong.created_at, jobwire.cut(wrong.lane, 64), jobwire.cut(wrong.origin, 64), jobwire.cut(reason, 4000),
                CASE WHEN octet_length(wrong.custom_values::text) <= 1048576 THEN wrong.custom_values END,
                CASE WHEN octet_length(wrong.trace_parent) <= 1024 THEN wrong.trace_parent END, clock_timestamp(),
                least(greatest(wrong.hints, 0), 1000000000))
            ON CONFLICT (id) DO NOTHING;
            EXIT WHEN FOUND;
            dead_letter_id := jobwire.uuid_v7();
        END LOOP;
        -- What an earlier attempt left stays behind the row.
        INSERT INTO jobwire.job_exception AS e (job_id, stack) VALUES (dead_letter_id, was)
        ON CONFLICT (job_id) DO UPDATE
            SET stack = excluded.stack || E'\n' || left(e.stack, 64000), written_at = clock_timestamp();
        IF source = 'job' THEN
            DELETE FROM jobwire.job_lease l WHERE l.job_id = wrong.id;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Lock the tables for the rest of this migration. A long transaction that holds one of them would otherwise make every node
-- wait behind this lock, so it is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job, jobwire.job_lease,
                jobwire.instance_lock, jobwire.suspension, jobwire.lane_rule IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the job tables busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

-- Set aside what does not fit, then add the checks. A row that is there already is not read again: NOT VALID.
DO $$
DECLARE
    source text;
    bound  record;
    fits   text := '';
    reason text := '';
    checks text := '';
    wrong  record;
BEGIN
    FOR bound IN
        SELECT field || '_is_at_most_' || bytes || '_bytes' AS name, format('octet_length(%I) <= %s', field, bytes) AS condition
        FROM (VALUES ('type', 1024), ('process_instance', 1024), ('execution', 1024), ('process_definition', 1024),
            ('element', 1024), ('tenant', 1024), ('category', 1024), ('deployment', 1024), ('retry_policy', 1024),
            ('repeat', 1024), ('trace_parent', 1024), ('lane', 64), ('origin', 64), ('exception_message', 4096)) AS texts (field, bytes)
        UNION ALL VALUES
            ('payload_is_at_most_1_mib', 'octet_length(payload::text) <= 1048576'),
            ('custom_values_is_at_most_1_mib', 'octet_length(custom_values::text) <= 1048576'),
            ('revision_is_in_range', 'revision BETWEEN 0 AND 1000000000'),
            ('hints_is_in_range', 'hints BETWEEN 0 AND 1000000000'),
            ('failures_is_in_range', 'failures BETWEEN 0 AND 1000000000'),
            -- The next occurrence of a repeating job has as many attempts as both together.
            ('retries_and_failures_are_in_range', 'retries::bigint + failures <= 2147483647')
    LOOP
        fits := fits || ' AND ' || bound.condition;
        reason := reason || format(', CASE WHEN NOT (%s) THEN %L END', bound.condition, bound.name);
        checks := checks || format(', ADD CONSTRAINT %I CHECK (%s) NOT VALID', bound.name, bound.condition);
    END LOOP;
    FOREACH source IN ARRAY ARRAY['job', 'timer_job', 'suspended_job', 'dead_letter_job'] LOOP
        FOR wrong IN EXECUTE format('SELECT reason, array_agg(id) AS ids FROM (
            SELECT id, concat_ws('', ''%s) AS reason FROM jobwire.%I WHERE NOT (true%s)) misfit GROUP BY reason', reason, source, fits)
        LOOP
            PERFORM jobwire.set_aside(source, wrong.ids,
                'set aside by migration 0002: ' || wrong.reason || '; the stack has the row as it was');
        END LOOP;
        EXECUTE format('ALTER TABLE jobwire.%I %s', source, substr(checks, 3));
    END LOOP;
END
$$;

-- No job can belong to an instance, a suspension or a rule beyond these.
DELETE FROM jobwire.instance_lock WHERE octet_length(process_instance) > 1024;
DELETE FROM jobwire.suspension WHERE octet_length(value) > 1024;
DELETE FROM jobwire.lane_rule WHERE octet_length(type) > 1024 OR octet_length(category) > 1024 OR octet_length(tenant) > 1024;
ALTER TABLE jobwire.instance_lock
    ADD CONSTRAINT process_instance_is_at_most_1024_bytes CHECK (octet_length(process_instance) <= 1024) NOT VALID;
ALTER TABLE jobwire.suspension
    ADD CONSTRAINT value_is_at_most_1024_bytes CHECK (octet_length(value) <= 1024) NOT VALID;
ALTER TABLE jobwire.lane_rule
    ADD CONSTRAINT type_is_at_most_1024_bytes CHECK (octet_length(type) <= 1024) NOT VALID,
    ADD CONSTRAINT category_is_at_most_1024_bytes CHECK (octet_length(category) <= 1024) NOT VALID,
    ADD CONSTRAINT tenant_is_at_most_1024_bytes CHECK (octet_length(tenant) <= 1024) NOT VALID;

-- A node sets the sequence of fences forward when it meets a server that it does not know. Roles that may lock may do so.
DO $$
DECLARE
    role text;
BEGIN
    FOR role IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
        WHERE c.oid = 'jobwire.job_lease'::regclass AND a.privilege_type = 'INSERT' AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT USAGE, UPDATE ON SEQUENCE jobwire.fence_seq TO %s', role);
    END LOOP;
END
$$;
