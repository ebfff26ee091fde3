-- The event stream: events of jobs, written by triggers in the transaction of the change, and published by the leader.
--
--   * The table `event` has the events that wait to be published.
--   * The table `event_stream` has one row while the stream is switched on. The triggers exist only as long as this row.
--   * Triggers derive the kind of an event from where a job was and where it is at the end of the statement. What the tables do
--     not show (completed or deleted, failed or put off) stands in a comment at the start of the statement.
--
-- The triggers fire once for each statement. Without the stream no table has one of them.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (12, 1);

-- All kinds. A transaction whose snapshot is older than the stream (REPEATABLE READ) does not see its options: its events are
-- all told, for none may be missed.
CREATE FUNCTION jobwire.event_kinds() RETURNS text[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY['created', 'timer_scheduled', 'timer_fired', 'locked', 'succeeded', 'failed', 'retries_decremented',
        'dead_lettered', 'cancelled', 'rescheduled', 'incident_opened', 'incident_closed']
$$;

CREATE TABLE jobwire.event_stream (
    only_row boolean     NOT NULL DEFAULT true PRIMARY KEY CHECK (only_row),
    source   text        NOT NULL CHECK (octet_length(source) BETWEEN 1 AND 256),
    kinds    text[]      NOT NULL CHECK (cardinality(kinds) BETWEEN 1 AND 32),
    -- NULL: all.
    types    text[]      CHECK (cardinality(types) BETWEEN 1 AND 1000),
    -- How long an event waits before it is dropped.
    keep     interval    NOT NULL CHECK (keep BETWEEN interval '1 minute' AND interval '3660 days'),
    since    timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE jobwire.event (
    seq                bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id                 uuid        NOT NULL DEFAULT gen_random_uuid(),
    at                 timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind               text        NOT NULL CHECK (kind = ANY (jobwire.event_kinds())),
    job_id             uuid        NOT NULL,
    type               text        NOT NULL,
    process_instance   text,
    process_definition text,
    element            text,
    tenant             text,
    category           text,
    correlation_id     uuid,
    trace_parent       text,
    attempt            integer,
    retries            integer,
    due_at             timestamptz,
    message            text,
    node               uuid,
    fence              bigint,
    CONSTRAINT dates_are_finite CHECK (isfinite(at) AND at < timestamptz '262143-01-01 00:00+00'
        AND coalesce(isfinite(due_at) AND due_at < timestamptz '262143-01-01 00:00+00', true))
);
ALTER TABLE jobwire.event SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000, autovacuum_vacuum_cost_delay = 0);

-- The functions run with the rights of their owner: a role that creates or moves a job needs none on the events. They read the
-- job tables by key only (enable_seqscan): a plan that was made while a table was empty would read all of it later.

-- What a statement says of itself: `completed`, `failed`, `snoozed`, `retried`, `rescheduled`, `aside`, or NULL.
CREATE FUNCTION jobwire.event_cause() RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT substring(pg_catalog.left(pg_catalog.current_query(), 64) FROM '^/\* jobwire: ([a-z]+) \*/')
$$;

-- Jobs were inserted. A job that moves between tables has a revision of 2 or more.
CREATE FUNCTION jobwire.tell_added() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stream jobwire.event_stream;
BEGIN
    -- Who may execute this function may hang it on a table of their own, whose columns could run code as the owner.
    IF TG_RELID NOT IN ('jobwire.job'::regclass, 'jobwire.timer_job'::regclass) THEN
        RAISE EXCEPTION 'this trigger belongs to the job tables' USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT * INTO stream FROM jobwire.event_stream;
    -- The snapshot of the transaction is older than the stream.
    IF NOT FOUND THEN
        stream.kinds := jobwire.event_kinds();
    END IF;
    INSERT INTO jobwire.event (kind, job_id, type, process_instance, process_definition, element, tenant, category,
        correlation_id, trace_parent, retries, due_at)
    SELECT k.kind, a.id, a.type, a.process_instance, a.process_definition, a.element, a.tenant, a.category, a.correlation_id,
        a.trace_parent, a.retries, a.due_at
    FROM added a CROSS JOIN LATERAL unnest(CASE TG_TABLE_NAME WHEN 'timer_job' THEN ARRAY['created', 'timer_scheduled']
        ELSE ARRAY['created'] END) WITH ORDINALITY AS k(kind, place)
    WHERE a.revision = 1 AND k.kind = ANY (stream.kinds) AND (stream.types IS NULL OR a.type = ANY (stream.types))
    ORDER BY a.seq, k.place;
    RETURN NULL;
END
$$;

-- Jobs were deleted. At the end of the statement a job that moved is in its new table.
CREATE FUNCTION jobwire.tell_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    stream jobwire.event_stream;
    source text := TG_TABLE_NAME;
    cause  text := jobwire.event_cause();
BEGIN
    IF TG_RELID NOT IN ('jobwire.job'::regclass, 'jobwire.timer_job'::regclass, 'jobwire.suspended_job'::regclass,
        'jobwire.dead_letter_job'::regclass)
    THEN
        RAISE EXCEPTION 'this trigger belongs to the job tables' USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT * INTO stream FROM jobwire.event_stream;
    -- The snapshot of the transaction is older than the stream.
    IF NOT FOUND THEN
        stream.kinds := jobwire.event_kinds();
    END IF;
    IF cause = 'completed' AND source = 'job' THEN
        INSERT INTO jobwire.event (kind, job_id, type, process_instance, process_definition, element, tenant, category,
            correlation_id, trace_parent, attempt, retries)
        SELECT 'succeeded', r.id, r.type, r.process_instance, r.process_definition, r.element, r.tenant, r.category,
            r.correlation_id, r.trace_parent, least(r.failures, 2147483646) + 1, r.retries
        FROM removed r
        WHERE 'succeeded' = ANY (stream.kinds) AND (stream.types IS NULL OR r.type = ANY (stream.types))
        ORDER BY r.seq;
        RETURN NULL;
    END IF;
    INSERT INTO jobwire.event (kind, job_id, type, process_instance, process_definition, element, tenant, category,
        correlation_id, trace_parent, attempt, retries, due_at, message)
    SELECT k.kind, r.id, r.type, r.process_instance, r.process_definition, r.element, r.tenant, r.category, r.correlation_id,
        r.trace_parent,
        CASE k.kind WHEN 'failed' THEN least(r.failures, 2147483646) + 1 END,
        coalesce(n.retries, CASE cause WHEN 'aside' THEN 0 ELSE r.retries END),
        CASE WHEN k.kind IN ('timer_scheduled', 'rescheduled') AND n.place <> 'job' THEN n.due_at END,
        CASE WHEN k.kind IN ('failed', 'incident_opened') THEN jobwire.cut(n.exception_message, 4000) END
    FROM removed r
    LEFT JOIN LATERAL (
        SELECT 'job' AS place, j.retries, j.due_at, j.exception_message FROM jobwire.job j WHERE j.id = r.id
        UNION ALL
        SELECT 'timer_job', j.retries, j.due_at, j.exception_message FROM jobwire.timer_job j WHERE j.id = r.id
        UNION ALL
        SELECT 'suspended_job', j.retries, j.due_at, j.exception_message FROM jobwire.suspended_job j WHERE j.id = r.id
        UNION ALL
        SELECT 'dead_letter_job', j.retries, j.due_at, j.exception_message FROM jobwire.dead_letter_job j WHERE j.id = r.id
        LIMIT 1
    ) n ON true
    CROSS JOIN LATERAL unnest(CASE
        -- The dead letter is inserted after this statement.
        WHEN cause = 'aside' AND source = 'dead_letter_job' THEN '{}'::text[]
        WHEN cause = 'aside' THEN ARRAY['dead_lettered', 'incident_opened']
        WHEN n.place IS NULL AND source = 'dead_letter_job' THEN ARRAY['cancelled', 'incident_closed']
        WHEN n.place IS NULL THEN ARRAY['cancelled']
        WHEN source = 'dead_letter_job' THEN ARRAY['rescheduled', 'incident_closed']
        WHEN source = 'job' AND cause = 'failed' THEN ARRAY['failed']
            || CASE WHEN n.retries < r.retries THEN ARRAY['retries_decremented'] ELSE '{}' END
            || CASE n.place WHEN 'dead_letter_job' THEN ARRAY['dead_lettered', 'incident_opened'] ELSE ARRAY['timer_scheduled'] END
        WHEN n.place = 'dead_letter_job' THEN ARRAY['dead_lettered', 'incident_opened']
        WHEN cause IN ('retried', 'snoozed', 'rescheduled') OR source = 'job' AND n.place = 'timer_job' THEN ARRAY['rescheduled']
        WHEN source = 'timer_job' AND n.place = 'job' THEN ARRAY['timer_fired']
    END) WITH ORDINALITY AS k(kind, place)
    WHERE k.kind = ANY (stream.kinds) AND (stream.types IS NULL OR r.type = ANY (stream.types))
    ORDER BY r.seq, k.place;
    RETURN NULL;
END
$$;

-- Rows of jobs were changed in place: their date by an operator, or they were made ready again by one. A nested loop would
-- compare each of the rows with each (enable_nestloop): they have no index.
CREATE FUNCTION jobwire.tell_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_nestloop = off AS $$
DECLARE
    stream jobwire.event_stream;
    cause  text := jobwire.event_cause();
BEGIN
    IF TG_RELID NOT IN ('jobwire.job'::regclass, 'jobwire.timer_job'::regclass, 'jobwire.suspended_job'::regclass) THEN
        RAISE EXCEPTION 'this trigger belongs to the job tables' USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT * INTO stream FROM jobwire.event_stream;
    -- The snapshot of the transaction is older than the stream.
    IF NOT FOUND THEN
        stream.kinds := jobwire.event_kinds();
    END IF;
    INSERT INTO jobwire.event (kind, job_id, type, process_instance, process_definition, element, tenant, category,
        correlation_id, trace_parent, retries, due_at)
    SELECT 'rescheduled', a.id, a.type, a.process_instance, a.process_definition, a.element, a.tenant, a.category,
        a.correlation_id, a.trace_parent, a.retries, CASE WHEN TG_TABLE_NAME <> 'job' THEN a.due_at END
    FROM after_change a JOIN before_change b ON b.id = a.id
    WHERE 'rescheduled' = ANY (stream.kinds) AND (stream.types IS NULL OR a.type = ANY (stream.types))
        AND CASE TG_TABLE_NAME WHEN 'job' THEN cause = 'retried'
            ELSE cause = 'rescheduled' OR a.due_at IS DISTINCT FROM b.due_at END
    ORDER BY a.seq;
    RETURN NULL;
END
$$;

-- Leases were written. A renewal keeps the owner and the fence. EXCEPT compares the rows by a hash or a sort; a join may compare
-- each with each.
CREATE FUNCTION jobwire.tell_leased() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    stream jobwire.event_stream;
BEGIN
    IF TG_RELID <> 'jobwire.job_lease'::regclass THEN
        RAISE EXCEPTION 'this trigger belongs to jobwire.job_lease' USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF NOT EXISTS (SELECT job_id, owner, fence FROM leased WHERE owner IS NOT NULL
                       EXCEPT SELECT job_id, owner, fence FROM before_lease)
        THEN
            RETURN NULL;
        END IF;
    END IF;
    SELECT * INTO stream FROM jobwire.event_stream;
    -- The snapshot of the transaction is older than the stream.
    IF NOT FOUND THEN
        stream.kinds := jobwire.event_kinds();
    END IF;
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO jobwire.event (kind, job_id, type, process_instance, process_definition, element, tenant, category,
            correlation_id, trace_parent, attempt, retries, node, fence)
        SELECT 'locked', j.id, j.type, j.process_instance, j.process_definition, j.element, j.tenant, j.category,
            j.correlation_id, j.trace_parent, least(j.failures, 2147483646) + 1, j.retries, l.owner, l.fence
        FROM (SELECT job_id, owner, fence FROM leased WHERE owner IS NOT NULL
              EXCEPT SELECT job_id, owner, fence FROM before_lease) l
        CROSS JOIN LATERAL (SELECT * FROM jobwire.job x WHERE x.id = l.job_id LIMIT 1) j
        WHERE stream.types IS NULL OR j.type = ANY (stream.types)
        ORDER BY l.fence;
    ELSE
        INSERT INTO jobwire.event (kind, job_id, type, process_instance, process_definition, element, tenant, category,
            correlation_id, trace_parent, attempt, retries, node, fence)
        SELECT 'locked', j.id, j.type, j.process_instance, j.process_definition, j.element, j.tenant, j.category,
            j.correlation_id, j.trace_parent, least(j.failures, 2147483646) + 1, j.retries, l.owner, l.fence
        FROM leased l CROSS JOIN LATERAL (SELECT * FROM jobwire.job x WHERE x.id = l.job_id LIMIT 1) j
        WHERE l.owner IS NOT NULL AND (stream.types IS NULL OR j.type = ANY (stream.types))
        ORDER BY l.fence;
    END IF;
    RETURN NULL;
END
$$;

-- Switch the stream on with these options, or off where `its_kinds` is NULL. The role owns the job tables, or is a member of
-- the role that does. Writers of jobs wait for less than a second for each table, so for some seconds at worst. Events that wait
-- are deleted when the stream is switched off; about their number is returned.
CREATE FUNCTION jobwire.switch_events(its_source text, its_kinds text[], its_types text[], its_keep interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    dropped bigint := 0;
    place   text;
BEGIN
    IF its_kinds IS NULL THEN
        SELECT count(*) INTO dropped FROM jobwire.event;
    END IF;
    -- A vacuum may keep the later locks away for hours. The server ends it when this lock has waited for deadlock_timeout, and
    -- no vacuum begins until the end. No writer waits behind this lock.
    PERFORM set_config('lock_timeout', (5000 + setting::integer)::text, true)
    FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout';
    BEGIN
        LOCK TABLE jobwire.job_lease, jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job, jobwire.event
            IN SHARE UPDATE EXCLUSIVE MODE;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        RAISE EXCEPTION 'maintenance or another switch keeps the job tables busy; end it (pg_stat_activity shows it), then try again'
            USING ERRCODE = 'lock_not_available';
    END;
    -- Other writers wait behind each of these locks no longer than this. It is less than deadlock_timeout, so this transaction
    -- gives way before the server ends another one. It stays to the end.
    PERFORM set_config('lock_timeout', '900ms', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.event_stream IN SHARE ROW EXCLUSIVE MODE;
            -- A trigger is dropped under the strongest lock, and is created under a weaker one.
            EXECUTE 'LOCK TABLE jobwire.job_lease, jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job IN '
                || CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger
                    WHERE tgname IN ('event_added', 'event_removed', 'event_changed')
                        AND tgrelid IN ('jobwire.job'::regclass, 'jobwire.timer_job'::regclass, 'jobwire.suspended_job'::regclass,
                            'jobwire.dead_letter_job'::regclass, 'jobwire.job_lease'::regclass))
                    THEN 'ACCESS EXCLUSIVE' ELSE 'SHARE ROW EXCLUSIVE' END
                || ' MODE';
            IF its_kinds IS NULL THEN
                LOCK TABLE jobwire.event IN ACCESS EXCLUSIVE MODE;
            END IF;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the job tables busy; end it (pg_stat_activity shows it), then try again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(0.5);
        END;
    END LOOP;
    -- A trigger that does not exist is no news.
    PERFORM set_config('client_min_messages', 'warning', true);
    FOREACH place IN ARRAY ARRAY['job', 'timer_job', 'suspended_job', 'dead_letter_job', 'job_lease'] LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS event_added ON jobwire.%I', place);
        EXECUTE format('DROP TRIGGER IF EXISTS event_removed ON jobwire.%I', place);
        EXECUTE format('DROP TRIGGER IF EXISTS event_changed ON jobwire.%I', place);
    END LOOP;
    IF its_kinds IS NULL THEN
        DELETE FROM jobwire.event_stream;
        TRUNCATE jobwire.event;
        RETURN dropped;
    END IF;
    INSERT INTO jobwire.event_stream AS s (source, kinds, types, keep) VALUES (its_source, its_kinds, its_types, its_keep)
    ON CONFLICT (only_row) DO UPDATE SET source = excluded.source, kinds = excluded.kinds, types = excluded.types,
        keep = excluded.keep;
    FOREACH place IN ARRAY ARRAY['job', 'timer_job'] LOOP
        EXECUTE format('CREATE TRIGGER event_added AFTER INSERT ON jobwire.%I REFERENCING NEW TABLE AS added
            FOR EACH STATEMENT EXECUTE FUNCTION jobwire.tell_added()', place);
    END LOOP;
    FOREACH place IN ARRAY ARRAY['job', 'timer_job', 'suspended_job', 'dead_letter_job'] LOOP
        EXECUTE format('CREATE TRIGGER event_removed AFTER DELETE ON jobwire.%I REFERENCING OLD TABLE AS removed
            FOR EACH STATEMENT EXECUTE FUNCTION jobwire.tell_removed()', place);
    END LOOP;
    FOREACH place IN ARRAY ARRAY['job', 'timer_job', 'suspended_job'] LOOP
        EXECUTE format('CREATE TRIGGER event_changed AFTER UPDATE ON jobwire.%I
            REFERENCING OLD TABLE AS before_change NEW TABLE AS after_change
            FOR EACH STATEMENT %s EXECUTE FUNCTION jobwire.tell_changed()', place,
            CASE place WHEN 'job' THEN 'WHEN (starts_with(current_query(), ''/* jobwire: retried */''))' ELSE '' END);
    END LOOP;
    IF 'locked' = ANY (its_kinds) THEN
        CREATE TRIGGER event_added AFTER INSERT ON jobwire.job_lease REFERENCING NEW TABLE AS leased
            FOR EACH STATEMENT EXECUTE FUNCTION jobwire.tell_leased();
        CREATE TRIGGER event_changed AFTER UPDATE ON jobwire.job_lease
            REFERENCING OLD TABLE AS before_lease NEW TABLE AS leased
            FOR EACH STATEMENT EXECUTE FUNCTION jobwire.tell_leased();
    END IF;
    RETURN dropped;
END
$$;

REVOKE ALL ON FUNCTION jobwire.tell_added, jobwire.tell_removed, jobwire.tell_changed, jobwire.tell_leased,
    jobwire.switch_events FROM PUBLIC;

-- Roles that run jobs today go on running them, and roles that read jobs may read these tables.
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.privilege_type AS privilege
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.dead_letter_job'::regclass AND a.privilege_type IN ('SELECT', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.event TO %s', held.privilege, held.role);
        IF held.privilege = 'SELECT' THEN
            EXECUTE format('GRANT SELECT ON jobwire.event_stream TO %s', held.role);
        END IF;
    END LOOP;
END
$$;
