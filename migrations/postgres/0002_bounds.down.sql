-- The dead letters that were set aside stay, and so does the role jobwire_creator: other databases of the server may use it.
DO $$
DECLARE
    gone regprocedure;
BEGIN
    FOR gone IN SELECT oid::regprocedure FROM pg_proc
        WHERE pronamespace = 'jobwire'::regnamespace AND proname IN ('create_job', 'create_job_hint', 'new_job', 'attempts_of',
            'bad_repeat', 'bad_retry_policy', 'bad_duration', 'as_json', 'check_json', 'check_text', 'refuse', 'set_aside', 'cut')
    LOOP
        EXECUTE format('DROP FUNCTION %s', gone);
    END LOOP;
    IF to_regrole('jobwire_creator') IS NOT NULL THEN
        DROP POLICY IF EXISTS jobwire_creator ON jobwire.job;
        DROP POLICY IF EXISTS jobwire_creator ON jobwire.timer_job;
        REVOKE ALL ON ALL TABLES IN SCHEMA jobwire FROM jobwire_creator;
        REVOKE ALL ON ALL SEQUENCES IN SCHEMA jobwire FROM jobwire_creator;
        REVOKE ALL ON ALL FUNCTIONS IN SCHEMA jobwire FROM jobwire_creator;
        REVOKE ALL ON SCHEMA jobwire FROM jobwire_creator;
    END IF;
END
$$;

DROP TABLE jobwire.strict_order;
DROP INDEX jobwire.timer_job_retries, jobwire.suspended_job_siblings, jobwire.dead_letter_job_siblings;

-- As migration 0001 made it.
CREATE FUNCTION jobwire.create_job(
    type               text,
    payload            json        DEFAULT 'null',
    process_instance   text        DEFAULT NULL,
    exclusive          boolean     DEFAULT NULL,
    due_at             timestamptz DEFAULT NULL,
    retries            integer     DEFAULT 3,
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
    custom_values      json        DEFAULT NULL,
    trace_parent       text        DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_variable
DECLARE
    new_id       uuid    := jobwire.uuid_v7();
    is_exclusive boolean := coalesce(create_job.exclusive, create_job.process_instance IS NOT NULL);
    its_lane     text    := coalesce(create_job.lane,
        jobwire.lane_of(create_job.type, create_job.category, create_job.tenant, create_job.priority));
BEGIN
    IF create_job.type IS NULL OR create_job.type = '' THEN
        RAISE EXCEPTION 'create_job: "type" is empty; name the handler type that shall run this job'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF is_exclusive AND create_job.process_instance IS NULL THEN
        RAISE EXCEPTION 'create_job: "exclusive" needs a "process_instance" to be exclusive in'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF create_job.retries IS NULL OR create_job.retries < 1 THEN
        RAISE EXCEPTION 'create_job: "retries" is %, it must be 1 or more', create_job.retries
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF create_job.lane !~ '^[A-Za-z0-9._-]{1,64}$' THEN
        RAISE EXCEPTION 'create_job: "lane" is "%"; use 1 to 64 letters, digits, "-", "_" or "."', create_job.lane
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(create_job.payload::text) > 1048576 THEN
        RAISE EXCEPTION 'create_job: "payload" has % bytes, more than 1048576; store the data apart and put its key into the payload',
            octet_length(create_job.payload::text)
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    IF create_job.due_at > clock_timestamp() THEN
        INSERT INTO jobwire.timer_job AS t (id, kind, type, payload, process_instance, execution, process_definition, element, tenant,
            category, deployment, priority, exclusive, retries, retry_policy, due_at, repeat, repeat_until, correlation_id, lane,
            custom_values, trace_parent)
        VALUES (new_id, 'timer', type, coalesce(payload, 'null'), process_instance, execution, process_definition, element, tenant,
            category, deployment, coalesce(priority, 0), is_exclusive, retries, retry_policy, due_at, repeat, repeat_until,
            coalesce(correlation_id, new_id), its_lane, custom_values, trace_parent);
    ELSE
        INSERT INTO jobwire.job AS j (id, kind, type, payload, process_instance, execution, process_definition, element, tenant,
            category, deployment, priority, exclusive, retries, retry_policy, due_at, repeat, repeat_until, correlation_id, lane,
            custom_values, trace_parent)
        VALUES (new_id, CASE WHEN repeat IS NULL THEN 'message' ELSE 'timer' END, type, coalesce(payload, 'null'), process_instance,
            execution, process_definition, element, tenant, category, deployment, coalesce(priority, 0), is_exclusive, retries,
            retry_policy, due_at, repeat, repeat_until, coalesce(correlation_id, new_id), its_lane, custom_values,
            trace_parent);
    END IF;
    RETURN new_id;
END
$$;

DO $$
DECLARE
    bound record;
BEGIN
    FOR bound IN
        SELECT conrelid::regclass AS source, conname FROM pg_constraint
        WHERE connamespace = 'jobwire'::regnamespace AND contype = 'c'
          AND (conname LIKE '%\_at\_most\_%' OR conname LIKE '%\_in\_range' OR conname = 'dates_are_finite')
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', bound.source, bound.conname);
    END LOOP;
END
$$;

ALTER TABLE jobwire.job_lease DROP COLUMN struck;
DELETE FROM jobwire.schema_version WHERE version = 2;
