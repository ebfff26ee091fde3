-- The nodes of the fleet: which jobs each of them takes. A node writes its row when it starts, when what it takes changes,
-- and once a minute; it deletes the row when it stops. The leader deletes the rows of nodes that died.
--
-- Nodes believe the broker only that a node lives. What it takes stands here, where only those can write who may run jobs.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (3, 1);

CREATE TABLE jobwire.node (
    id          uuid        NOT NULL,
    -- Grows with every change; beats name it, so that other nodes read the row again.
    revision    bigint      NOT NULL,
    types       text[]      NOT NULL,
    lanes       text[]      NOT NULL,
    -- NULL: all. A job that names none is for every node.
    deployments text[],
    categories  text[],
    tenants     text[],
    host        text        NOT NULL,
    version     text        NOT NULL,
    transport   text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT names_are_at_most_4096 CHECK (
        cardinality(types) <= 4096 AND cardinality(lanes) <= 4096 AND coalesce(cardinality(deployments), 0) <= 4096
        AND coalesce(cardinality(categories), 0) <= 4096 AND coalesce(cardinality(tenants), 0) <= 4096),
    CONSTRAINT names_are_at_most_1_mib CHECK (
        coalesce(octet_length(array_to_string(types, '')), 0) + coalesce(octet_length(array_to_string(lanes, '')), 0)
        + coalesce(octet_length(array_to_string(deployments, '')), 0) + coalesce(octet_length(array_to_string(categories, '')), 0)
        + coalesce(octet_length(array_to_string(tenants, '')), 0) <= 1048576),
    CONSTRAINT texts_are_at_most_1024_bytes CHECK (
        octet_length(host) <= 1024 AND octet_length(version) <= 1024 AND octet_length(transport) <= 1024),
    CONSTRAINT dates_are_finite CHECK (
        isfinite(started_at) AND started_at < timestamptz '262143-01-01 00:00+00'
        AND isfinite(seen_at) AND seen_at < timestamptz '262143-01-01 00:00+00'),
    PRIMARY KEY (id)
) WITH (fillfactor = 50);

-- Roles that run jobs today go on running them; roles that look at leases may look at nodes.
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.privilege_type AS privilege
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.job_lease'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.node TO %s', held.privilege, held.role);
    END LOOP;
END
$$;

-- Migration 0002 let roles call create_job that may insert jobs. Those that may insert some columns of
-- a job only may call it too.
DO $$
DECLARE
    door    regprocedure;
    creator text;
BEGIN
    FOR creator IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
        FROM pg_attribute c, aclexplode(c.attacl) a
        WHERE c.attrelid = 'jobwire.job'::regclass AND a.privilege_type = 'INSERT'
    LOOP
        FOR door IN SELECT oid::regprocedure FROM pg_proc
            WHERE pronamespace = 'jobwire'::regnamespace AND proname IN ('create_job', 'create_job_hint')
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', door, creator);
        END LOOP;
    END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'roles that may insert some columns of jobwire.job may not call create_job: %', SQLERRM
        USING HINT = 'Let the owner of the functions grant EXECUTE on them.';
END
$$;
