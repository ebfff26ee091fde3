-- Ends of instances, history jobs, attempts and incidents.
--
--   * Indexes find the jobs of an instance or an execution that ends. Only jobs that have these fields are in them.
--   * create_history_job creates history jobs from any language.
--   * The table `attempt` has the attempts of the types that record them; nobody else writes it.
--   * The table `incident` has the dead letters of the present and of the past. Triggers of dead_letter_job keep it, so that it
--     is exact whichever program moves the job.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (5, 1);

-- Lock the tables before the indexes are made. A long transaction that holds one of them would otherwise make every node wait
-- behind this lock, so it is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job IN SHARE ROW EXCLUSIVE MODE;
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

-- job_siblings finds the exclusive jobs of an instance.
CREATE INDEX job_instance ON jobwire.job (process_instance) WHERE NOT exclusive AND process_instance IS NOT NULL;
CREATE INDEX job_execution ON jobwire.job (execution) WHERE execution IS NOT NULL;
CREATE INDEX timer_job_instance ON jobwire.timer_job (process_instance) WHERE process_instance IS NOT NULL;
CREATE INDEX timer_job_execution ON jobwire.timer_job (execution) WHERE execution IS NOT NULL;

-- Create a history job, in the caller's own transaction: SELECT jobwire.create_history_job(type => 'write-history', payload => …);
-- It says what NewJob::history says: ten attempts, the lane `history`, not exclusive.
CREATE FUNCTION jobwire.create_history_job(
    type               text,
    payload            json    DEFAULT 'null',
    process_instance   text    DEFAULT NULL,
    retries            integer DEFAULT NULL,
    retry_policy       text    DEFAULT NULL,
    priority           bigint  DEFAULT 0,
    lane               text    DEFAULT NULL,
    execution          text    DEFAULT NULL,
    process_definition text    DEFAULT NULL,
    element            text    DEFAULT NULL,
    tenant             text    DEFAULT NULL,
    category           text    DEFAULT NULL,
    deployment         text    DEFAULT NULL,
    correlation_id     uuid    DEFAULT NULL,
    custom_values      json    DEFAULT NULL,
    trace_parent       text    DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    new_id      uuid := jobwire.uuid_v7();
    its_payload json := coalesce(payload, 'null');
    wrong       text := jobwire.bad_retry_policy(retry_policy);
BEGIN
    PERFORM jobwire.check_json('payload', its_payload::text);
    PERFORM jobwire.check_json('custom_values', custom_values::text);
    IF coalesce(type, '') = '' THEN
        PERFORM jobwire.refuse('type', 'is empty', 'name the handler type that runs this job');
    END IF;
    IF starts_with(type, 'jobwire.') THEN
        PERFORM jobwire.refuse('type', 'begins with `jobwire.`', 'choose another name: these types change how jobs run, so only '
            'the library and the program create them');
    END IF;
    PERFORM jobwire.check_text(field, value) FROM (VALUES
        ('type', type), ('process_instance', process_instance), ('execution', execution),
        ('process_definition', process_definition), ('element', element), ('tenant', tenant), ('category', category),
        ('deployment', deployment), ('retry_policy', retry_policy), ('trace_parent', trace_parent)) AS texts (field, value);
    IF retries < 1 THEN
        PERFORM jobwire.refuse('retries', 'is ' || retries, 'give 1 or more: the first attempt counts');
    END IF;
    IF lane !~ '^[A-Za-z0-9._-]{1,64}$' THEN
        PERFORM jobwire.refuse('lane', 'is not a lane''s name', 'use 1 to 64 letters, digits, `-`, `_` or `.`');
    END IF;
    IF wrong IS NOT NULL THEN
        PERFORM jobwire.refuse('retry_policy', wrong,
            'use for example `30s`, `exponential(1s, 2, 1h)`, `R5/PT5M` or `PT10M,PT17M`');
    END IF;
    INSERT INTO jobwire.job AS j (id, kind, type, payload, process_instance, execution, process_definition, element, tenant,
        category, deployment, priority, exclusive, retries, retry_policy, correlation_id, lane, custom_values, trace_parent)
    VALUES (new_id, 'history', type, its_payload, process_instance, execution, process_definition, element, tenant,
        category, deployment, coalesce(priority, 0), false, coalesce(retries, jobwire.attempts_of(retry_policy), 10),
        retry_policy, coalesce(correlation_id, new_id), coalesce(lane, 'history'), custom_values, trace_parent);
    RETURN new_id;
END
$$;

-- The attempts of jobs whose types record them. A fence is one lock of one job, so it is one attempt. The statement that ends
-- the attempt writes its row; the leader deletes it after `keep_until`.
CREATE TABLE jobwire.attempt (
    fence            bigint      NOT NULL,
    job_id           uuid        NOT NULL,
    type             text        NOT NULL,
    process_instance text,
    tenant           text,
    node             uuid        NOT NULL,
    started_at       timestamptz NOT NULL,
    ended_at         timestamptz NOT NULL,
    outcome          text        NOT NULL,
    message          text,
    stack            text,
    keep_until       timestamptz NOT NULL,
    PRIMARY KEY (fence)
);
CREATE INDEX attempt_job ON jobwire.attempt (job_id, fence);
CREATE INDEX attempt_keep_until ON jobwire.attempt (keep_until);
CREATE INDEX attempt_error ON jobwire.attempt (type, ended_at) WHERE message IS NOT NULL;

-- Dead letters of the present (resolved_at is null) and of the past.
CREATE TABLE jobwire.incident (
    job_id             uuid        NOT NULL,
    opened_at          timestamptz NOT NULL,
    type               text        NOT NULL,
    process_instance   text,
    process_definition text,
    element            text,
    tenant             text,
    message            text,
    resolved_at        timestamptz,
    -- `revived`, `deleted`, or NULL while it is open.
    resolution         text,
    PRIMARY KEY (job_id, opened_at)
);
CREATE INDEX incident_open ON jobwire.incident (opened_at) WHERE resolved_at IS NULL;
CREATE INDEX incident_resolved ON jobwire.incident (resolved_at) WHERE resolved_at IS NOT NULL;

-- The triggers run with the rights of their owner: a role that moves a dead letter needs none on the incidents. Nothing in them
-- can refuse a row.
CREATE FUNCTION jobwire.open_incident() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Who may execute this function may hang it on a table of their own, whose columns could run code as the owner.
    IF TG_RELID <> 'jobwire.dead_letter_job'::regclass THEN
        RAISE EXCEPTION 'this trigger belongs to jobwire.dead_letter_job' USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO jobwire.incident (job_id, opened_at, type, process_instance, process_definition, element, tenant, message)
    VALUES (NEW.id, clock_timestamp(), NEW.type, NEW.process_instance, NEW.process_definition, NEW.element, NEW.tenant,
        NEW.exception_message)
    ON CONFLICT (job_id, opened_at) DO UPDATE SET message = excluded.message, resolved_at = NULL, resolution = NULL;
    RETURN NULL;
END
$$;
-- At the end of the statement that took the dead letter: a revival has put the job into another table.
CREATE FUNCTION jobwire.resolve_incident() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Who may execute this function may hang it on a table of their own, whose columns could run code as the owner.
    IF TG_RELID <> 'jobwire.dead_letter_job'::regclass THEN
        RAISE EXCEPTION 'this trigger belongs to jobwire.dead_letter_job' USING ERRCODE = 'insufficient_privilege';
    END IF;
    UPDATE jobwire.incident SET resolved_at = clock_timestamp(),
        resolution = CASE WHEN EXISTS (SELECT FROM jobwire.job j WHERE j.id = OLD.id) THEN 'revived' ELSE 'deleted' END
    WHERE job_id = OLD.id AND resolved_at IS NULL;
    RETURN NULL;
END
$$;
CREATE TRIGGER open_incident AFTER INSERT ON jobwire.dead_letter_job FOR EACH ROW EXECUTE FUNCTION jobwire.open_incident();
CREATE TRIGGER resolve_incident AFTER DELETE ON jobwire.dead_letter_job FOR EACH ROW EXECUTE FUNCTION jobwire.resolve_incident();

INSERT INTO jobwire.incident (job_id, opened_at, type, process_instance, process_definition, element, tenant, message)
SELECT id, ready_at, type, process_instance, process_definition, element, tenant, exception_message FROM jobwire.dead_letter_job;

-- Roles that run jobs today go on running them, and roles that read jobs may read these tables.
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.privilege_type AS privilege
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.dead_letter_job'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.attempt, jobwire.incident TO %s', held.privilege, held.role);
    END LOOP;
END
$$;

-- Who may create jobs may create history jobs. The function belongs to the owner of create_job, where this user may do that.
REVOKE ALL ON FUNCTION jobwire.create_history_job FROM PUBLIC;
REVOKE ALL ON FUNCTION jobwire.open_incident, jobwire.resolve_incident FROM PUBLIC;
DO $$
DECLARE
    door    record;
    creator text;
BEGIN
    SELECT p.proowner::regrole::text AS owner, p.proacl AS acl INTO STRICT door
    FROM pg_proc p WHERE p.pronamespace = 'jobwire'::regnamespace AND p.proname = 'create_job' ORDER BY p.oid LIMIT 1;
    FOR creator IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM aclexplode(door.acl) a WHERE a.privilege_type = 'EXECUTE'
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION jobwire.create_history_job TO %s', creator);
    END LOOP;
    BEGIN
        IF door.owner <> current_user THEN
            EXECUTE format('GRANT CREATE ON SCHEMA jobwire TO %s', door.owner);
            EXECUTE format('ALTER FUNCTION jobwire.create_history_job OWNER TO %s', door.owner);
            EXECUTE format('REVOKE CREATE ON SCHEMA jobwire FROM %s', door.owner);
        END IF;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE WARNING 'create_history_job runs with the rights of %: %', current_user, SQLERRM
            USING HINT = 'docs/operations.md, "Rights", says what an administrator can do.';
    END;
END
$$;
