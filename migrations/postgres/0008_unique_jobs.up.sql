-- Unique jobs: at most one job has a key.
--
--   * The table `unique_job` has the job that has each key. Only jobs with a key have rows. A key is free again when its job has
--     left the tables of jobs, so the end of a job writes nothing here. The leader deletes the rows of free keys.
--   * The table `unique_dead_letter` has the dead letters whose keys other jobs have taken. It keeps such a dead letter from
--     being revived beside the job that has its key.
--   * create_unique_job creates unique jobs from any language.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (8, 1);

-- For the trigger below. The lock is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.dead_letter_job IN SHARE ROW EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the table of dead letters busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

-- `type` is '' for a key that all types share. `tenant` is '' for such a key, and for jobs without a tenant.
CREATE TABLE jobwire.unique_job (
    type         text        NOT NULL CHECK (octet_length(type) <= 1024),
    tenant       text        NOT NULL CHECK (octet_length(tenant) <= 1024),
    key          text        NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 512),
    job_id       uuid        NOT NULL,
    -- Until then the job has the key, whatever becomes of it. NULL: as long as it is pending.
    held_until   timestamptz,
    -- Whether a dead letter has its key, too.
    dead_letters boolean     NOT NULL,
    -- When a program last saw that the key was taken.
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (type, tenant, key)
);
CREATE INDEX unique_job_seen ON jobwire.unique_job (seen_at);
CREATE INDEX unique_job_job ON jobwire.unique_job (job_id);

CREATE TABLE jobwire.unique_dead_letter (
    job_id uuid NOT NULL,
    type   text NOT NULL,
    tenant text NOT NULL,
    key    text NOT NULL,
    PRIMARY KEY (job_id)
);

-- Whether the job of a row has its key. A caller that may create jobs need not read them.
CREATE FUNCTION jobwire.has_key(job_id uuid, held_until timestamptz, dead_letters boolean) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN held_until IS NOT NULL THEN held_until > statement_timestamp()
        ELSE EXISTS (SELECT FROM jobwire.job j WHERE j.id = has_key.job_id)
            OR EXISTS (SELECT FROM jobwire.timer_job t WHERE t.id = has_key.job_id)
            OR EXISTS (SELECT FROM jobwire.suspended_job s WHERE s.id = has_key.job_id)
            OR dead_letters AND EXISTS (SELECT FROM jobwire.dead_letter_job d WHERE d.id = has_key.job_id) END
$$;

-- The end of the period that now is in. All periods of a length begin at the same moments, counted from 1970.
CREATE FUNCTION jobwire.period_end(period_us bigint) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE STRICT AS $$
    SELECT timestamptz '1970-01-01 00:00+00' + ((floor(extract(epoch FROM statement_timestamp())::numeric * 1000000 / period_us) + 1)
        * period_us / 1000000)::double precision * interval '1 second'
$$;

-- The triggers run with the rights of their owner, and refuse tables of others: see open_incident.
CREATE FUNCTION jobwire.key_taken() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_RELID <> 'jobwire.unique_job'::regclass THEN
        RAISE EXCEPTION 'this trigger belongs to jobwire.unique_job' USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO jobwire.unique_dead_letter (job_id, type, tenant, key)
    SELECT OLD.job_id, OLD.type, OLD.tenant, OLD.key WHERE EXISTS (SELECT FROM jobwire.dead_letter_job d WHERE d.id = OLD.job_id)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER key_taken AFTER UPDATE OF job_id ON jobwire.unique_job
    FOR EACH ROW WHEN (OLD.job_id <> NEW.job_id AND OLD.held_until IS NULL) EXECUTE FUNCTION jobwire.key_taken();

-- A revived dead letter takes its key back, or stays where it is.
CREATE FUNCTION jobwire.take_key_back() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    former jobwire.unique_dead_letter;
    holder uuid;
BEGIN
    IF TG_RELID <> 'jobwire.dead_letter_job'::regclass THEN
        RAISE EXCEPTION 'this trigger belongs to jobwire.dead_letter_job' USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF jobwire.has_key(OLD.id, NULL, false) THEN
        -- A creator that takes the key of this dead letter at this moment is waited for, or waits and sees the revived job. The
        -- next statement sees what that creator has committed. The row is written, not only locked: a creator with an older
        -- snapshot (REPEATABLE READ) fails with a conflict.
        UPDATE jobwire.unique_job u SET seen_at = clock_timestamp() WHERE u.job_id = OLD.id;
    END IF;
    DELETE FROM jobwire.unique_dead_letter f WHERE f.job_id = OLD.id RETURNING * INTO former;
    IF FOUND AND jobwire.has_key(OLD.id, NULL, false) THEN
        INSERT INTO jobwire.unique_job AS u (type, tenant, key, job_id, dead_letters)
        VALUES (former.type, former.tenant, former.key, OLD.id, false)
        ON CONFLICT (type, tenant, key) DO UPDATE SET job_id = u.job_id
        RETURNING u.job_id INTO holder;
        UPDATE jobwire.unique_job u SET job_id = OLD.id, held_until = NULL, dead_letters = false, seen_at = clock_timestamp()
        WHERE u.type = former.type AND u.tenant = former.tenant AND u.key = former.key
            AND (u.job_id = OLD.id OR NOT jobwire.has_key(u.job_id, u.held_until, u.dead_letters));
        IF NOT FOUND THEN
            RAISE EXCEPTION 'job % has the unique key of job % now; complete or delete it, then try again', holder, OLD.id
                USING ERRCODE = 'unique_violation';
        END IF;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER take_key_back AFTER DELETE ON jobwire.dead_letter_job
    FOR EACH ROW EXECUTE FUNCTION jobwire.take_key_back();

-- Create a job unless another job has its key, in the caller's own transaction:
--   SELECT id, created FROM jobwire.create_unique_job(type => 'sync', unique_key => 'customer-17');
-- If another job has the key, its id is returned and `created` is false. A transaction that is creating a job with the same key
-- is waited for.
CREATE FUNCTION jobwire.create_unique_job(
    type                text,
    unique_key          text,
    payload             json        DEFAULT 'null',
    process_instance    text        DEFAULT NULL,
    exclusive           boolean     DEFAULT NULL,
    due_at              timestamptz DEFAULT NULL,
    retries             integer     DEFAULT NULL,
    retry_policy        text        DEFAULT NULL,
    priority            bigint      DEFAULT NULL,
    lane                text        DEFAULT NULL,
    execution           text        DEFAULT NULL,
    process_definition  text        DEFAULT NULL,
    element             text        DEFAULT NULL,
    tenant              text        DEFAULT NULL,
    category            text        DEFAULT NULL,
    deployment          text        DEFAULT NULL,
    correlation_id      uuid        DEFAULT NULL,
    custom_values       json        DEFAULT NULL,
    trace_parent        text        DEFAULT NULL,
    unique_period       interval    DEFAULT NULL,
    unique_dead_letters boolean     DEFAULT false,
    unique_global       boolean     DEFAULT false
) RETURNS TABLE (id uuid, created boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    its_type   text   := CASE WHEN unique_global THEN '' ELSE type END;
    its_tenant text   := CASE WHEN unique_global THEN '' ELSE coalesce(tenant, '') END;
    seconds    numeric := extract(epoch FROM unique_period);
    until      timestamptz;
    mine       uuid := jobwire.uuid_v7();
    holder     uuid;
BEGIN
    PERFORM jobwire.check_text('type', type);
    PERFORM jobwire.check_text('tenant', tenant);
    IF coalesce(unique_key, '') = '' THEN
        PERFORM jobwire.refuse('unique_key', 'is empty', 'give a text that names what the job is for');
    ELSIF octet_length(unique_key) > 512 THEN
        PERFORM jobwire.refuse('unique_key', format('has %s bytes, more than 512', octet_length(unique_key)), 'shorten it');
    ELSIF seconds NOT BETWEEN 1 AND 3155760000 THEN
        PERFORM jobwire.refuse('unique_period', 'is not between 1 second and 100 years', 'give for example `1h`');
    END IF;
    until := jobwire.period_end((seconds * 1000000)::bigint);
    SELECT u.job_id INTO holder FROM jobwire.unique_job u
    WHERE u.type = its_type AND u.tenant = its_tenant AND u.key = unique_key
        AND jobwire.has_key(u.job_id, u.held_until, u.dead_letters);
    IF FOUND THEN
        RETURN QUERY SELECT holder, false;
        RETURN;
    END IF;
    -- The row lock makes other creators of the key wait until this transaction ends.
    INSERT INTO jobwire.unique_job AS u (type, tenant, key, job_id, held_until, dead_letters)
    VALUES (coalesce(its_type, ''), its_tenant, unique_key, mine, until, coalesce(unique_dead_letters, false))
    ON CONFLICT ON CONSTRAINT unique_job_pkey DO UPDATE SET job_id = u.job_id
    RETURNING u.job_id INTO holder;
    -- A later statement sees what was committed during the wait.
    IF holder <> mine AND EXISTS (SELECT FROM jobwire.unique_job u
        WHERE u.type = its_type AND u.tenant = its_tenant AND u.key = unique_key
            AND jobwire.has_key(u.job_id, u.held_until, u.dead_letters))
    THEN
        RETURN QUERY SELECT holder, false;
        RETURN;
    END IF;
    SELECT new.new_id INTO holder FROM jobwire.new_job(type => type, payload => payload, process_instance => process_instance,
        exclusive => exclusive, due_at => due_at, retries => retries, retry_policy => retry_policy, priority => priority,
        lane => lane, execution => execution, process_definition => process_definition, element => element, tenant => tenant,
        category => category, deployment => deployment, repeat => NULL, repeat_until => NULL, correlation_id => correlation_id,
        custom_values => custom_values, trace_parent => trace_parent) AS new;
    UPDATE jobwire.unique_job u SET job_id = holder, held_until = until, dead_letters = coalesce(unique_dead_letters, false),
        seen_at = clock_timestamp()
    WHERE u.type = its_type AND u.tenant = its_tenant AND u.key = unique_key;
    RETURN QUERY SELECT holder, true;
END
$$;

-- Who may create jobs may create unique ones, and who runs jobs may do here what they may do with dead letters.
REVOKE ALL ON FUNCTION jobwire.has_key, jobwire.key_taken, jobwire.take_key_back, jobwire.create_unique_job FROM PUBLIC;
DO $$
DECLARE
    held    record;
    door    record;
    creator text;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role,
            CASE c.relname WHEN 'job' THEN 'SELECT, INSERT, UPDATE' ELSE a.privilege_type END AS privilege,
            c.relname <> 'job' AS of_letters
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.job'::regclass AND a.privilege_type = 'INSERT'
            OR c.oid = 'jobwire.dead_letter_job'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.unique_job TO %s', held.privilege, held.role);
        IF held.of_letters THEN
            EXECUTE format('GRANT %s ON jobwire.unique_dead_letter TO %s', held.privilege, held.role);
        END IF;
        EXECUTE format('GRANT EXECUTE ON FUNCTION jobwire.has_key TO %s', held.role);
    END LOOP;
    SELECT p.proowner::regrole::text AS owner, p.proacl AS acl INTO STRICT door
    FROM pg_proc p WHERE p.pronamespace = 'jobwire'::regnamespace AND p.proname = 'create_job' ORDER BY p.oid LIMIT 1;
    FOR creator IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM aclexplode(door.acl) a WHERE a.privilege_type = 'EXECUTE'
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION jobwire.create_unique_job TO %s', creator);
    END LOOP;
    BEGIN
        IF door.owner <> current_user THEN
            EXECUTE format('GRANT CREATE ON SCHEMA jobwire TO %s', door.owner);
            EXECUTE format('ALTER FUNCTION jobwire.create_unique_job OWNER TO %s', door.owner);
            EXECUTE format('REVOKE CREATE ON SCHEMA jobwire FROM %s', door.owner);
        END IF;
    EXCEPTION WHEN insufficient_privilege THEN
        RAISE WARNING 'create_unique_job runs with the rights of %: %', current_user, SQLERRM
            USING HINT = 'docs/operating/databases.md says what an administrator can do.';
    END;
END
$$;
