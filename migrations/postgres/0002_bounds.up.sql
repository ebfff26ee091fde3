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
    -- Few and compact: PostgreSQL reads all of them again for each statement that writes.
    FOR bound IN SELECT * FROM (VALUES
            ('texts_are_at_most_1024_bytes', 'greatest(octet_length(type), octet_length(process_instance), octet_length(execution),
                octet_length(process_definition), octet_length(element), octet_length(tenant), octet_length(category),
                octet_length(deployment), octet_length(retry_policy), octet_length(repeat), octet_length(trace_parent)) <= 1024'),
            ('lane_and_origin_are_at_most_64_bytes', 'greatest(octet_length(lane), octet_length(origin)) <= 64'),
            ('exception_message_is_at_most_4096_bytes', 'octet_length(exception_message) <= 4096'),
            ('payload_and_custom_values_are_at_most_1_mib',
                'greatest(octet_length(payload::text), octet_length(custom_values::text)) <= 1048576'),
            ('counts_are_in_range', 'least(revision, hints, failures) >= 0 AND greatest(revision, hints, failures) <= 1000000000'),
            -- The next occurrence of a repeating job has as many attempts as both together.
            ('retries_and_failures_are_in_range', 'retries::bigint + failures <= 2147483647')) AS bounds (name, condition)
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

-- A date that no program can read ends every list of jobs.
UPDATE jobwire.job_lease SET expires_at = clock_timestamp() WHERE NOT (isfinite(expires_at) AND expires_at < timestamptz '9999-12-31 00:00+00');
UPDATE jobwire.job_lease SET locked_at = clock_timestamp() WHERE NOT (isfinite(locked_at) AND locked_at < timestamptz '9999-12-31 00:00+00');
ALTER TABLE jobwire.job_lease
    ADD CONSTRAINT dates_are_finite CHECK (isfinite(expires_at) AND isfinite(locked_at)
        AND greatest(expires_at, locked_at) < timestamptz '9999-12-31 00:00+00') NOT VALID;

-- The order of exclusive jobs is strict while there is a row: no job of an instance starts while an elder sibling waits for a
-- retry, is suspended, or is a dead letter. Else such a job lets its siblings pass. The indexes find the elder ones; they
-- hold exceptions only.
CREATE TABLE jobwire.strict_order (
    only_row boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    since    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX timer_job_retries ON jobwire.timer_job (process_instance, seq) WHERE exclusive AND hints > 0;
CREATE INDEX suspended_job_siblings ON jobwire.suspended_job (process_instance, seq) WHERE exclusive;
CREATE INDEX dead_letter_job_siblings ON jobwire.dead_letter_job (process_instance, seq) WHERE exclusive;

-- A node sets the sequence of fences forward when it meets a server that it does not know, and reads whether the order is strict.
-- Roles that may lock may do the one, and roles that read the suspensions the other.
DO $$
DECLARE
    need record;
BEGIN
    FOR need IN
        SELECT DISTINCT given.what, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role
        FROM (VALUES ('jobwire.job_lease'::regclass, 'INSERT', 'USAGE, UPDATE ON SEQUENCE jobwire.fence_seq'),
                     ('jobwire.suspension', 'SELECT', 'SELECT ON jobwire.strict_order')) AS given (relation, has, what)
        JOIN pg_class c ON c.oid = given.relation CROSS JOIN aclexplode(c.relacl) a
        WHERE a.privilege_type = given.has AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT %s TO %s', need.what, need.role);
    END LOOP;
END
$$;

-- What create_job refuses, in the words of the library (NewJob::validate). A test compares the two.
CREATE FUNCTION jobwire.refuse(field text, problem text, remedy text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RAISE EXCEPTION 'field `%` %; %', field, problem, remedy USING ERRCODE = 'invalid_parameter_value', COLUMN = field;
END
$$;

CREATE FUNCTION jobwire.check_text(field text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF octet_length(value) > 1024 THEN
        PERFORM jobwire.refuse(field, format('has %s bytes, more than 1024', octet_length(value)), 'shorten it');
    END IF;
END
$$;

CREATE FUNCTION jobwire.check_json(field text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF octet_length(value) > 1048576 THEN
        PERFORM jobwire.refuse(field, format('has %s bytes, more than 1048576', octet_length(value)),
            'store the data apart and put its key here');
    END IF;
    -- Behind an escaped backslash u0000 is plain text.
    IF strpos(value, E'\\u0000') > 0 AND value ~ E'(?:^|[^\\\\])(?:\\\\\\\\)*\\\\u0000' THEN
        PERFORM jobwire.refuse(field, E'contains the NUL character \\u0000', 'leave it out: databases can''t store it as text');
    END IF;
END
$$;

CREATE FUNCTION jobwire.as_json(field text, value text) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN value::json;
EXCEPTION WHEN invalid_text_representation THEN
    PERFORM jobwire.refuse(field, 'is not JSON: ' || SQLERRM, 'give JSON text');
END
$$;

-- Why this text is no duration, or NULL.
CREATE FUNCTION jobwire.bad_duration(given text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    value   text := btrim(given, E' \t\n\f\r');
    wrong   text := format('`%s` is not a duration; write for example `30s`, `5m` or `PT5M`', value);
    part    text[];
    seconds numeric;
BEGIN
    IF value ~ '^[Pp+-]' AND value ~ '[Pp]' THEN
        -- Years and months have no fixed length, so there are none of them; engines write that.
        part := regexp_match(value, '^([+-]?)P(?:([0-9]+)Y)?(?:([0-9]+)M)?(?:([0-9]+)W)?(?:([0-9]+)D)?(?:T(?:([0-9]+)(?:[.,]([0-9]{1,9}))?H)?'
            '(?:([0-9]+)(?:[.,]([0-9]{1,9}))?M)?(?:([0-9]+)(?:[.,]([0-9]{1,9}))?S)?)?$', 'i');
        IF part IS NULL OR value ~* '[PT]$'
            OR (part[7] IS NOT NULL AND (part[8] IS NOT NULL OR part[10] IS NOT NULL)) OR (part[9] IS NOT NULL AND part[10] IS NOT NULL)
            OR part[2]::numeric > 0 OR part[3]::numeric > 0
        THEN
            RETURN wrong;
        END IF;
        seconds := coalesce(part[4]::numeric, 0) * 604800 + coalesce(part[5]::numeric, 0) * 86400
            + coalesce((part[6] || '.' || coalesce(part[7], '0'))::numeric, 0) * 3600
            + coalesce((part[8] || '.' || coalesce(part[9], '0'))::numeric, 0) * 60
            + coalesce((part[10] || '.' || coalesce(part[11], '0'))::numeric, 0);
    ELSE
        part := regexp_match(value, '^([^A-Za-z]*)(ms|s|m|min|h|d)$');
        wrong := format('`%s` is not a duration; write for example `30s`, `5m` or `PT5M`', value);
        IF part IS NULL THEN
            RETURN wrong;
        END IF;
        seconds := CASE part[2] WHEN 'ms' THEN 0.001 WHEN 's' THEN 1 WHEN 'h' THEN 3600 WHEN 'd' THEN 86400 ELSE 60 END;
        part := regexp_match(btrim(part[1], E' \t\n\f\r'), '^([+-]?)([0-9]*)(?:[.]([0-9]*))?$');
        IF part IS NULL OR part[2] || coalesce(part[3], '') = '' THEN
            RETURN wrong;
        END IF;
        seconds := trunc(seconds * ('0' || part[2] || '.' || left(coalesce(part[3], ''), 18) || '0')::numeric, 9);
    END IF;
    IF part[1] = '-' OR seconds = 0 THEN
        RETURN format('the duration `%s` is not more than zero; write for example `30s`', value);
    ELSIF seconds > 100 * 366 * 86400::numeric THEN
        RETURN format('the duration `%s` is longer than 100 years', value);
    END IF;
    RETURN NULL;
END
$$;

-- Why this text is no retry policy, or NULL.
CREATE FUNCTION jobwire.bad_retry_policy(given text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    value text := btrim(given, E' \t\n\f\r');
    part  text[];
    count text;
    fits  boolean := false;
    wait  text;
    wrong text;
BEGIN
    IF starts_with(value, 'exponential(') AND right(value, 1) = ')' THEN
        part := string_to_array(substr(value, 13, length(value) - 13), ',');
        IF coalesce(array_length(part, 1), 1) <> 3 THEN
            RETURN format('`%s` is not of the form exponential(first, factor, max)', value);
        END IF;
        wrong := jobwire.bad_duration(part[1]);
        IF wrong IS NOT NULL THEN
            RETURN wrong;
        END IF;
        count := btrim(part[2], E' \t\n\f\r');
        IF count ~ '^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$' THEN
            BEGIN
                fits := count::double precision BETWEEN 1 AND 100;
            EXCEPTION WHEN numeric_value_out_of_range THEN
                fits := false;
            END;
        END IF;
        IF NOT fits THEN
            RETURN format('the factor `%s` is not a number from 1 to 100', count);
        END IF;
        RETURN jobwire.bad_duration(part[3]);
    END IF;
    IF starts_with(value, 'R') AND strpos(value, '/') > 0 THEN
        count := substr(split_part(value, '/', 1), 2);
        IF count ~ '^[+]?[0-9]+$' THEN
            fits := count::numeric BETWEEN 1 AND 1000000;
        END IF;
        IF NOT fits THEN
            RETURN format('the count in `%s` is not a number from 1 to 1000000', value);
        END IF;
        RETURN jobwire.bad_duration(substr(value, strpos(value, '/') + 1));
    END IF;
    IF strpos(value, ',') > 0 THEN
        part := string_to_array(value, ',');
        FOREACH wait IN ARRAY part LOOP
            wrong := jobwire.bad_duration(wait);
            IF wrong IS NOT NULL THEN
                RETURN wrong;
            END IF;
        END LOOP;
        IF array_length(part, 1) > 100 THEN
            RETURN format('the list has %s intervals, more than 100', array_length(part, 1));
        END IF;
        RETURN NULL;
    END IF;
    RETURN jobwire.bad_duration(value);
END
$$;

-- The attempts that a readable retry policy names, or NULL: a cycle's count, one more than a list's waits.
CREATE FUNCTION jobwire.attempts_of(retry_policy text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN starts_with(value, 'R') AND strpos(value, '/') > 0 THEN substr(split_part(value, '/', 1), 2)::integer
        WHEN starts_with(value, 'exponential(') THEN NULL
        WHEN strpos(value, ',') > 0 THEN array_length(string_to_array(value, ','), 1) + 1 END
    FROM btrim(retry_policy, E' \t\n\f\r') AS value
$$;

-- Why this text is no repeating interval, or NULL.
CREATE FUNCTION jobwire.bad_repeat(given text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    value text := btrim(given, E' \t\n\f\r');
    times text := substr(split_part(value, '/', 1), 2);
BEGIN
    IF NOT starts_with(value, 'R') OR strpos(value, '/') = 0 THEN
        RETURN format('`%s` is not of the form R3/PT10M or R/PT10M', given);
    END IF;
    IF times <> '' AND (times !~ '^[+]?[0-9]+$' OR ltrim(times, '+')::numeric NOT BETWEEN 1 AND 4294967295) THEN
        RETURN format('the count in `%s` is not a number of 1 or more', given);
    END IF;
    RETURN jobwire.bad_duration(substr(value, strpos(value, '/') + 1));
END
$$;

-- Checks and inserts a job. Without a lane it gets that of the rules. A job that waits for its due date has no lane to be
-- hinted in.
CREATE FUNCTION jobwire.new_job(
    type text, payload json, process_instance text, exclusive boolean, due_at timestamptz, retries integer, retry_policy text,
    priority bigint, lane text, execution text, process_definition text, element text, tenant text, category text,
    deployment text, repeat text, repeat_until timestamptz, correlation_id uuid, custom_values json, trace_parent text,
    OUT new_id uuid, OUT hint_lane text
)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    its_payload  json    := coalesce(new_job.payload, 'null');
    is_exclusive boolean := coalesce(new_job.exclusive, new_job.process_instance IS NOT NULL);
    attempts     integer;
    wrong        text;
BEGIN
    PERFORM jobwire.check_json('payload', its_payload::text);
    PERFORM jobwire.check_json('custom_values', custom_values::text);
    IF coalesce(new_job.type, '') = '' THEN
        PERFORM jobwire.refuse('type', 'is empty', 'name the handler type that runs this job');
    END IF;
    IF greatest(octet_length(type), octet_length(process_instance), octet_length(execution), octet_length(process_definition),
        octet_length(element), octet_length(tenant), octet_length(category), octet_length(deployment), octet_length(retry_policy),
        octet_length(repeat), octet_length(trace_parent)) > 1024
    THEN
        PERFORM jobwire.check_text('type', type);
        PERFORM jobwire.check_text('process_instance', process_instance);
        PERFORM jobwire.check_text('execution', execution);
        PERFORM jobwire.check_text('process_definition', process_definition);
        PERFORM jobwire.check_text('element', element);
        PERFORM jobwire.check_text('tenant', tenant);
        PERFORM jobwire.check_text('category', category);
        PERFORM jobwire.check_text('deployment', deployment);
        PERFORM jobwire.check_text('retry_policy', retry_policy);
        PERFORM jobwire.check_text('repeat', repeat);
        PERFORM jobwire.check_text('trace_parent', trace_parent);
    END IF;
    IF is_exclusive AND process_instance IS NULL THEN
        PERFORM jobwire.refuse('exclusive', 'is set without a process instance',
            'give `process_instance`: without one there is nothing to exclude');
    END IF;
    IF retries < 1 THEN
        PERFORM jobwire.refuse('retries', 'is ' || retries, 'give 1 or more: the first attempt counts');
    END IF;
    IF due_at NOT BETWEEN timestamptz '0001-01-01 00:00+00' AND timestamptz '262142-12-31 23:59:59.999999+00' THEN
        PERFORM jobwire.refuse('due_at', 'is not within the years 1 to 262142', 'give a date of these years, or none');
    END IF;
    IF repeat_until NOT BETWEEN timestamptz '0001-01-01 00:00+00' AND timestamptz '262142-12-31 23:59:59.999999+00' THEN
        PERFORM jobwire.refuse('repeat_until', 'is not within the years 1 to 262142', 'give a date of these years, or none');
    END IF;
    IF lane !~ '^[A-Za-z0-9._-]{1,64}$' THEN
        PERFORM jobwire.refuse('lane', 'is not a lane''s name', 'use 1 to 64 letters, digits, `-`, `_` or `.`');
    END IF;
    wrong := jobwire.bad_retry_policy(retry_policy);
    IF wrong IS NOT NULL THEN
        PERFORM jobwire.refuse('retry_policy', wrong,
            'use for example `30s`, `exponential(1s, 2, 1h)`, `R5/PT5M` or `PT10M,PT17M`');
    END IF;
    wrong := jobwire.bad_repeat(repeat);
    IF wrong IS NOT NULL THEN
        PERFORM jobwire.refuse('repeat', wrong, 'use for example `R3/PT10M`');
    END IF;
    new_id := jobwire.uuid_v7();
    attempts := coalesce(retries, jobwire.attempts_of(retry_policy), 3);
    hint_lane := coalesce(lane, jobwire.lane_of(type, category, tenant, priority));
    IF due_at > clock_timestamp() THEN
        INSERT INTO jobwire.timer_job AS t (id, kind, type, payload, process_instance, execution, process_definition, element, tenant,
            category, deployment, priority, exclusive, retries, retry_policy, due_at, repeat, repeat_until, correlation_id, lane,
            custom_values, trace_parent)
        VALUES (new_id, 'timer', type, its_payload, process_instance, execution, process_definition, element, tenant,
            category, deployment, coalesce(priority, 0), is_exclusive, attempts, retry_policy, due_at, repeat, repeat_until,
            coalesce(correlation_id, new_id), hint_lane, custom_values, trace_parent);
        hint_lane := NULL;
    ELSE
        INSERT INTO jobwire.job AS j (id, kind, type, payload, process_instance, execution, process_definition, element, tenant,
            category, deployment, priority, exclusive, retries, retry_policy, due_at, repeat, repeat_until, correlation_id, lane,
            custom_values, trace_parent)
        VALUES (new_id, CASE WHEN repeat IS NULL THEN 'message' ELSE 'timer' END, type, its_payload, process_instance,
            execution, process_definition, element, tenant, category, deployment, coalesce(priority, 0), is_exclusive, attempts,
            retry_policy, due_at, repeat, repeat_until, coalesce(correlation_id, new_id), hint_lane, custom_values, trace_parent);
    END IF;
END
$$;

-- Create a job from any language, in the caller's own transaction:
--   SELECT jobwire.create_job(type => 'send-invoice', payload => '{"order": 17}', process_instance => 'order-17');
-- create_job_hint returns what the hint needs: the id and the lane, which is NULL where the job waits for its due date.
-- Payload and custom values are json, jsonb or text. Only the first has a default, so that an untyped literal is text.
-- Both run with the rights of their owner, so that creators need none but EXECUTE; policies of row security that
-- are meant for the caller do not apply.
DO $do$
DECLARE
    document text;
    arguments text;
    names text := 'process_instance, exclusive, due_at, retries, retry_policy, priority, lane, execution, process_definition, '
        'element, tenant, category, deployment, repeat, repeat_until, correlation_id';
    call text;
BEGIN
    FOREACH document IN ARRAY ARRAY['json', 'jsonb', 'text'] LOOP
        arguments := format($$
            type               text,
            payload            %1$s%2$s,
            process_instance   text        DEFAULT NULL,
            exclusive          boolean     DEFAULT NULL,
            due_at             timestamptz DEFAULT NULL,
            retries            integer     DEFAULT NULL,
            retry_policy       text        DEFAULT NULL,
            priority           bigint      DEFAULT 0,
            lane               text        DEFAULT NULL,
            execution          text        DEFAULT NULL,
            process_definition text        DEFAULT NULL,
            element            text        DEFAULT NULL,
            tenant             text        DEFAULT NULL,
            category           text        DEFAULT NULL,
            deployment         text        DEFAULT NULL,
            repeat             text        DEFAULT NULL,
            repeat_until       timestamptz DEFAULT NULL,
            correlation_id     uuid        DEFAULT NULL,
            custom_values      %1$s        DEFAULT NULL,
            trace_parent       text        DEFAULT NULL$$,
            document, CASE document WHEN 'json' THEN ' DEFAULT ''null''' ELSE '' END);
        call := format('jobwire.new_job(type, %s, process_instance, exclusive, due_at, retries, retry_policy, priority, lane, '
            'execution, process_definition, element, tenant, category, deployment, repeat, repeat_until, correlation_id, %s, '
            'trace_parent)',
            CASE document WHEN 'text' THEN 'jobwire.as_json(''payload'', payload)' ELSE 'payload::json' END,
            CASE document WHEN 'text' THEN 'jobwire.as_json(''custom_values'', custom_values)' ELSE 'custom_values::json' END);
        EXECUTE format($$
            CREATE OR REPLACE FUNCTION jobwire.create_job(%s) RETURNS uuid
            LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
            AS 'BEGIN RETURN (SELECT new.new_id FROM %s AS new); END'$$, arguments, replace(call, '''', ''''''));
        EXECUTE format($$
            CREATE FUNCTION jobwire.create_job_hint(%s) RETURNS TABLE (id uuid, lane text)
            LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
            AS 'SELECT new.new_id, new.hint_lane FROM %s AS new'$$, arguments, replace(call, '''', ''''''));
    END LOOP;
END
$do$;

-- The functions belong to a role that nobody logs in as, with the rights that they need and no more. It is one for all
-- databases of the server. Where this user may not make it or not use it, the functions stay with this user. Who may insert
-- jobs today may go on creating them.
REVOKE ALL ON FUNCTION jobwire.new_job FROM PUBLIC;
DO $$
DECLARE
    door    regprocedure;
    creator record;
BEGIN
    FOR apart IN REVERSE 1..0 LOOP
        BEGIN
            IF apart = 1 THEN
                IF to_regrole('jobwire_creator') IS NULL THEN
                    BEGIN
                        CREATE ROLE jobwire_creator NOLOGIN;
                    EXCEPTION WHEN duplicate_object OR unique_violation THEN
                        NULL; -- Another database of the server was migrated at the same moment.
                    END;
                END IF;
                IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'jobwire_creator'
                           AND (rolcanlogin OR rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication))
                THEN
                    RAISE EXCEPTION 'it may do more than it needs' USING ERRCODE = 'insufficient_privilege';
                END IF;
                IF NOT pg_has_role('jobwire_creator', 'USAGE') THEN
                    GRANT jobwire_creator TO CURRENT_USER;
                END IF;
                GRANT USAGE, CREATE ON SCHEMA jobwire TO jobwire_creator;
                GRANT INSERT ON jobwire.job, jobwire.timer_job TO jobwire_creator;
                GRANT SELECT ON jobwire.lane_rule TO jobwire_creator;
                GRANT USAGE ON SEQUENCE jobwire.job_seq TO jobwire_creator;
                GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA jobwire TO jobwire_creator;
                -- Where row security is switched on, these rows pass it.
                CREATE POLICY jobwire_creator ON jobwire.job FOR INSERT TO jobwire_creator WITH CHECK (true);
                CREATE POLICY jobwire_creator ON jobwire.timer_job FOR INSERT TO jobwire_creator WITH CHECK (true);
            END IF;
            FOR door IN SELECT oid::regprocedure FROM pg_proc
                WHERE pronamespace = 'jobwire'::regnamespace AND proname IN ('create_job', 'create_job_hint')
            LOOP
                IF apart = 1 THEN
                    EXECUTE format('ALTER FUNCTION %s OWNER TO jobwire_creator', door);
                END IF;
                EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', door);
                FOR creator IN
                    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS name
                    FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
                    WHERE c.oid = 'jobwire.job'::regclass AND a.privilege_type = 'INSERT'
                LOOP
                    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', door, creator.name);
                END LOOP;
            END LOOP;
            IF apart = 1 THEN
                REVOKE CREATE ON SCHEMA jobwire FROM jobwire_creator;
            END IF;
            EXIT;
        EXCEPTION WHEN insufficient_privilege THEN
            IF apart = 0 THEN
                RAISE;
            END IF;
            RAISE WARNING 'create_job runs with the rights of %, since the role jobwire_creator can''t be used: %', current_user, SQLERRM
                USING HINT = 'docs/operations.md, "Rights", says what an administrator can do.';
        END;
    END LOOP;
END
$$;
