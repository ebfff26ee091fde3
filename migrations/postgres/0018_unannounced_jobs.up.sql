-- Jobs that operations made ready in a process that publishes no hints. A leader hints them in its next cycle.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (18, 1);

-- A row of a job that is gone is deleted by the leader.
CREATE TABLE jobwire.unannounced_job (
    job_id   uuid        NOT NULL PRIMARY KEY,
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp() CHECK (isfinite(noted_at) AND noted_at < timestamptz '262143-01-01 00:00+00')
);

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

-- A transaction that has written periodic jobs and stays open would make all others wait behind the lock. So it is tried again
-- and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.periodic_job IN SHARE ROW EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the table of periodic jobs busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

-- A role that writes periodic jobs must not pause the others by one, unless it may write suspensions.
CREATE TRIGGER may_change_gates BEFORE INSERT OR UPDATE OF template ON jobwire.periodic_job
    FOR EACH ROW WHEN (starts_with(NEW.template ->> 'type', 'jobwire.')) EXECUTE FUNCTION jobwire.may_change_gates();
