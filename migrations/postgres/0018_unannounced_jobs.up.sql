-- Jobs that operations made ready in a process that publishes no hints. A leader hints them in its next cycle.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (18, 1);

-- A row of a job that is gone is deleted by the leader.
CREATE TABLE jobwire.unannounced_job (job_id uuid NOT NULL PRIMARY KEY);

-- Roles that operate on jobs today go on operating on them.
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.privilege_type AS privilege
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.dead_letter_job'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.unannounced_job TO %s', held.privilege, held.role);
    END LOOP;
END
$$;

-- A role that writes periodic jobs must not pause the others by one, unless it may write suspensions.
CREATE TRIGGER may_change_gates BEFORE INSERT OR UPDATE OF template ON jobwire.periodic_job
    FOR EACH ROW WHEN (starts_with(NEW.template ->> 'type', 'jobwire.')) EXECUTE FUNCTION jobwire.may_change_gates();
