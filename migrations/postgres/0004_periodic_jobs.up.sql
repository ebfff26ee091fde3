-- Periodic jobs: each names a schedule and the job that the leader creates at each of its due dates.
--
-- A declaration with a larger version replaces one with a smaller version, never the other way round.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (4, 1);

CREATE TABLE jobwire.periodic_job (
    name       text        NOT NULL,
    version    bigint      NOT NULL DEFAULT 0,
    -- What `repeat` of a job may be, without a count.
    schedule   text        NOT NULL,
    -- The fields of the job, as an object.
    template   json        NOT NULL,
    paused     boolean     NOT NULL DEFAULT false,
    -- NULL: the schedule has ended.
    next_due   timestamptz,
    last_due   timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT name_is_1_to_256_bytes CHECK (octet_length(name) BETWEEN 1 AND 256),
    CONSTRAINT version_is_not_negative CHECK (version >= 0),
    CONSTRAINT schedule_is_at_most_1024_bytes CHECK (octet_length(schedule) <= 1024),
    CONSTRAINT template_is_at_most_4_mib CHECK (octet_length(template::text) <= 4194304),
    CONSTRAINT dates_are_finite CHECK (
        coalesce(isfinite(next_due), true) AND coalesce(next_due < timestamptz '262143-01-01 00:00+00', true)
        AND coalesce(isfinite(last_due), true) AND coalesce(last_due < timestamptz '262143-01-01 00:00+00', true)
        AND isfinite(created_at) AND isfinite(changed_at)),
    PRIMARY KEY (name)
) WITH (fillfactor = 50);

CREATE INDEX periodic_job_next_due ON jobwire.periodic_job (next_due) WHERE NOT paused;

-- Roles that run jobs today go on running them; roles that look at leases may look at periodic jobs.
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.privilege_type AS privilege
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.job_lease'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.periodic_job TO %s', held.privilege, held.role);
    END LOOP;
END
$$;

-- Programs know more forms of `repeat` than a schema: calendar periods, cron expressions, bounds, time zones. So the schema
-- bounds its length only. A text that no node can read makes the job a dead letter, with the reason, before it runs.
CREATE OR REPLACE FUNCTION jobwire.bad_repeat(given text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT NULL::text
$$;
