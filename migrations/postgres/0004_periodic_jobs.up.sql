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

-- Why this text is no repetition, or NULL: an interval, or a cron expression, with suffixes in brackets. Programs know the
-- names of time zones and the fields of cron expressions; those are not judged here. A text that no node can read makes the
-- job a dead letter, with the reason, before it runs.
CREATE OR REPLACE FUNCTION jobwire.bad_repeat(given text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    body     text := btrim(regexp_replace(btrim(given, E' \t\n\f\r'), '(\s*\[[^\[\]]*\])+$', ''), E' \t\n\f\r');
    wrong    text := format('`%s` is neither an interval of the form R3/PT10M or R/PT10M nor a cron expression of five or six fields', given);
    has_zone boolean := body <> btrim(given, E' \t\n\f\r');
    times    text := substr(split_part(body, '/', 1), 2);
    inside   text := (regexp_match(body, '\([^()]*\)'))[1];
    parts    text[];
    schedule text;
    dates    text[];
    date     text;
BEGIN
    IF NOT starts_with(body, 'R') THEN
        IF starts_with(body, '@') OR cardinality(regexp_split_to_array(body, '[ \t\n\f\r]+')) IN (5, 6) THEN
            RETURN NULL;
        END IF;
        RETURN wrong;
    END IF;
    IF strpos(body, '/') = 0 THEN
        RETURN wrong;
    END IF;
    IF times <> '' AND (times !~ '^[+]?[0-9]+$' OR ltrim(times, '+')::numeric NOT BETWEEN 1 AND 4294967295) THEN
        RETURN format('the count in `%s` is not a number of 1 or more', given);
    END IF;
    -- Slashes in the parentheses of cron(...) separate nothing.
    body := substr(body, strpos(body, '/') + 1);
    body := coalesce(replace(body, inside, translate(inside, '/', E'\x01')), body);
    parts := string_to_array(body, '/');
    CASE cardinality(parts)
        WHEN 1 THEN
            schedule := parts[1];
        WHEN 2 THEN
            IF parts[2] ~ '^[0-9].*-' THEN
                schedule := parts[1];
                dates := parts[2:2];
            ELSE
                schedule := parts[2];
                dates := parts[1:1];
            END IF;
        WHEN 3 THEN
            schedule := parts[2];
            dates := ARRAY[parts[1], parts[3]];
        ELSE
            -- An empty text has no part.
            IF body <> '' THEN
                RETURN wrong;
            END IF;
            schedule := '';
    END CASE;
    IF NOT (schedule ~ '^cron\(.*\)$' OR schedule ~* '^\+?P[^T]*[1-9][0-9]*[YM]' OR (has_zone AND schedule ~* '^\+?P[^T]*[1-9][0-9]*[WD]')) THEN
        wrong := jobwire.bad_duration(schedule);
        IF wrong IS NOT NULL THEN
            RETURN wrong;
        END IF;
    END IF;
    FOREACH date IN ARRAY coalesce(dates, '{}') LOOP
        IF date !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}' THEN
            RETURN format('`%s` is not a date with a time zone; write for example 2027-01-31T08:00:00Z', date);
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
