-- Limits: at most a number of jobs with one key run at once in a fleet.
--
--   * The table `permit_key` has the keys that were used lately. Its row is the lock under which permits of the key are granted.
--   * The table `permit` has the permits that each node has borrowed. The sum over the nodes never exceeds the size of the limit.
--   * The table `waiting_job` has the jobs that wait for a permit. Such a job stays in the executable table, without a lease.
--
-- A program that does not know these tables runs jobs without a limit.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (10, 1);

CREATE TABLE jobwire.permit_key (
    limit_name text        NOT NULL CHECK (octet_length(limit_name) <= 1024),
    key        text        NOT NULL CHECK (octet_length(key) <= 1024),
    size       integer     NOT NULL CHECK (size > 0),
    used_at    timestamptz NOT NULL,
    PRIMARY KEY (limit_name, key)
);

CREATE TABLE jobwire.permit (
    limit_name text        NOT NULL CHECK (octet_length(limit_name) <= 1024),
    key        text        NOT NULL CHECK (octet_length(key) <= 1024),
    node       uuid        NOT NULL,
    number     integer     NOT NULL CHECK (number > 0),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (limit_name, key, node)
);
CREATE INDEX permit_expires ON jobwire.permit (expires_at);

CREATE TABLE jobwire.waiting_job (
    job_id     uuid        NOT NULL PRIMARY KEY,
    limit_name text        NOT NULL CHECK (octet_length(limit_name) <= 1024),
    key        text        NOT NULL CHECK (octet_length(key) <= 1024),
    type       text        NOT NULL CHECK (octet_length(type) <= 1024),
    -- The creation order of the job.
    seq        bigint      NOT NULL,
    -- When the job was hinted because a permit was free. NULL: it waits.
    woken_at   timestamptz
);
CREATE INDEX waiting_job_next ON jobwire.waiting_job (limit_name, key, seq) WHERE woken_at IS NULL;
CREATE INDEX waiting_job_woken ON jobwire.waiting_job (limit_name, key, woken_at) WHERE woken_at IS NOT NULL;

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
        EXECUTE format('GRANT %s ON jobwire.permit_key, jobwire.permit, jobwire.waiting_job TO %s', held.privilege, held.role);
    END LOOP;
END
$$;
