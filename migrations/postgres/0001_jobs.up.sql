-- Jobwire's tables, in a schema of their own.
--
-- Five ideas shape them (ARCHITECTURE.md, docs/adr):
--   * one table per state, all of the same shape: the hot table stays small, a move copies the row;
--   * a lock is a row of job_lease, not columns of job: job rows are inserted and deleted, never
--     updated on the hot path, and the sweeper reads only what is in flight;
--   * a fence comes from one sequence, so no value is ever given out twice;
--   * no index names a lock; the hot table has its primary key, and two partial indexes that only
--     exclusive jobs and jobs created by plain SQL pay for;
--   * every time is the database's own clock_timestamp(): now() stands still inside a transaction.

CREATE SCHEMA IF NOT EXISTS jobwire;

-- The oldest program that may still work with this schema (protocol: migrations only add within a
-- major version, so `readable_by` moves only with a major one).
CREATE TABLE jobwire.schema_version (
    version     integer     NOT NULL,
    readable_by integer     NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (version)
);
INSERT INTO jobwire.schema_version (version, readable_by) VALUES (1, 1);

-- Creation order. Ids come from many clocks and several share a millisecond.
CREATE SEQUENCE jobwire.job_seq AS bigint;
-- Fences: strictly growing, shared by all jobs, never repeated.
CREATE SEQUENCE jobwire.fence_seq AS bigint;

-- A version-7 UUID for jobs created by plain SQL: 48 bits of milliseconds over a random UUID.
CREATE FUNCTION jobwire.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            52, 1), 53, 1),
        'hex')::uuid
$$;

-- Executable jobs: ready now.
CREATE TABLE jobwire.job (
    id                 uuid        NOT NULL,
    seq                bigint      NOT NULL DEFAULT nextval('jobwire.job_seq'),
    revision           integer     NOT NULL DEFAULT 1,
    kind               text        NOT NULL DEFAULT 'message' CHECK (kind IN ('message', 'timer', 'history')),
    type               text        NOT NULL CHECK (type <> ''),
    payload            json        NOT NULL DEFAULT 'null',
    process_instance   text,
    execution          text,
    process_definition text,
    element            text,
    tenant             text,
    category           text,
    deployment         text,
    priority           bigint      NOT NULL DEFAULT 0,
    exclusive          boolean     NOT NULL DEFAULT false CHECK (NOT exclusive OR process_instance IS NOT NULL),
    retries            integer     NOT NULL DEFAULT 3 CHECK (retries >= 0),
    failures           integer     NOT NULL DEFAULT 0,
    retry_policy       text,
    due_at             timestamptz,
    repeat             text,
    repeat_until       timestamptz,
    correlation_id     uuid        NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    lane               text        NOT NULL DEFAULT 'default',
    origin             text        NOT NULL DEFAULT 'sql',
    exception_message  text,
    custom_values      json,
    trace_parent       text,
    -- When the job last became ready, and how many hints were meant for it; the sweeper reads these.
    ready_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    hints              integer     NOT NULL DEFAULT 0,
    -- No program can read a moment beyond these, and a row that no node can read would hold up others.
    CONSTRAINT due_at_is_finite CHECK (isfinite(due_at) AND due_at < timestamptz '262143-01-01 00:00+00'),
    CONSTRAINT repeat_until_is_finite CHECK (isfinite(repeat_until) AND repeat_until < timestamptz '262143-01-01 00:00+00'),
    CONSTRAINT created_at_is_finite CHECK (isfinite(created_at) AND created_at < timestamptz '262143-01-01 00:00+00'),
    CONSTRAINT ready_at_is_finite CHECK (isfinite(ready_at) AND ready_at < timestamptz '262143-01-01 00:00+00'),
    PRIMARY KEY (id)
);
-- "Try this instance": its first ready job by creation order.
CREATE INDEX job_siblings ON jobwire.job (process_instance, seq) WHERE exclusive;
-- Jobs that nobody hinted yet (plain SQL). Empty for jobs created through the library.
CREATE INDEX job_unhinted ON jobwire.job (seq) WHERE hints = 0;

CREATE TABLE jobwire.timer_job         (LIKE jobwire.job INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
CREATE TABLE jobwire.suspended_job     (LIKE jobwire.job INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
CREATE TABLE jobwire.dead_letter_job   (LIKE jobwire.job INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
ALTER TABLE jobwire.timer_job       ADD PRIMARY KEY (id);
ALTER TABLE jobwire.suspended_job   ADD PRIMARY KEY (id);
ALTER TABLE jobwire.dead_letter_job ADD PRIMARY KEY (id);
ALTER TABLE jobwire.timer_job ALTER COLUMN due_at SET NOT NULL;
CREATE INDEX timer_job_due ON jobwire.timer_job (due_at);

-- Stack traces stand apart: large, rarely read, and written only on failure.
CREATE TABLE jobwire.job_exception (
    job_id     uuid        NOT NULL,
    stack      text        NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (job_id)
);

-- Who may run a job, until when, and the token that proves it. Rows exist only for jobs in flight,
-- and for jobs whose last holder died (owner is null, strikes remember it). alone_since: the job runs
-- alone on its node, because earlier holders died.
CREATE TABLE jobwire.job_lease (
    job_id     uuid        NOT NULL,
    owner      uuid,
    fence      bigint      NOT NULL,
    locked_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    alone_since timestamptz,
    strikes    integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id)
) WITH (fillfactor = 70);

-- Which exclusive job holds a process instance. No expiry of its own: it counts only while the
-- lease it names lives.
CREATE TABLE jobwire.instance_lock (
    process_instance text   NOT NULL,
    job_id           uuid,
    owner            uuid,
    fence            bigint,
    PRIMARY KEY (process_instance)
) WITH (fillfactor = 70);

-- What is suspended. Small by nature; the lock statement consults it.
CREATE TABLE jobwire.suspension (
    scope text        NOT NULL CHECK (scope IN ('process_instance', 'process_definition', 'type', 'tenant')),
    value text        NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, value)
);

-- Which lane a job gets whose creator names none: that of the first rule, by position, all of whose
-- conditions hold (NULL asks nothing), else `default`. Read by every insert; small by nature.
CREATE TABLE jobwire.lane_rule (
    position     integer NOT NULL,
    type         text,
    category     text,
    tenant       text,
    min_priority bigint,
    max_priority bigint,
    lane         text    NOT NULL CHECK (lane ~ '^[A-Za-z0-9._-]{1,64}$'),
    PRIMARY KEY (position)
);

-- One leader per role, by lease. `transport` tells an embedded node from a fleet.
CREATE TABLE jobwire.leader (
    role       text        NOT NULL,
    node       uuid        NOT NULL,
    term       bigint      NOT NULL,
    transport  text        NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (role)
);

-- What `event` jobs leave behind: one row per replayed activity, written in the transaction that
-- completes the job.
CREATE TABLE jobwire.event_log (
    job_id           uuid        NOT NULL,
    process_instance text        NOT NULL,
    activity         text        NOT NULL,
    position         bigint      NOT NULL,
    fence            bigint      NOT NULL,
    node             uuid        NOT NULL,
    started_at       timestamptz NOT NULL,
    ended_at         timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX event_log_instance ON jobwire.event_log (process_instance, position);

-- The queue tables live by autovacuum: a fixed number of dead rows, not a share of a table that
-- may be millions of rows long.
ALTER TABLE jobwire.job SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 500000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE jobwire.timer_job SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0);
ALTER TABLE jobwire.job_lease SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
ALTER TABLE jobwire.instance_lock SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);

-- The lane that the rules choose; for writers that fill the job tables themselves.
CREATE FUNCTION jobwire.lane_of(
    type     text,
    category text   DEFAULT NULL,
    tenant   text   DEFAULT NULL,
    priority bigint DEFAULT 0
) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
#variable_conflict use_variable
BEGIN
    RETURN coalesce(
        (SELECT r.lane FROM jobwire.lane_rule r
         WHERE (r.type IS NULL OR r.type = lane_of.type) AND (r.category IS NULL OR r.category = lane_of.category)
           AND (r.tenant IS NULL OR r.tenant = lane_of.tenant)
           AND (r.min_priority IS NULL OR r.min_priority <= coalesce(lane_of.priority, 0))
           AND (r.max_priority IS NULL OR r.max_priority >= coalesce(lane_of.priority, 0))
         ORDER BY r.position LIMIT 1),
        'default');
END
$$;

-- Create a job from any language, in the caller's own transaction. Without a lane it gets that of the rules:
--   SELECT jobwire.create_job(type => 'send-invoice', payload => '{"order": 17}', process_instance => 'order-17');
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
