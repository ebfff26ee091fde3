-- Pauses: rows of the table of suspensions with words of their own. A paused job stays ready, and no statement locks it.
-- A program that does not know a word goes on running its jobs.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (6, 1);

-- Every lock statement reads these tables, so the locks are tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.job, jobwire.timer_job IN SHARE ROW EXCLUSIVE MODE;
            LOCK TABLE jobwire.suspension IN ACCESS EXCLUSIVE MODE;
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

ALTER TABLE jobwire.suspension
    DROP CONSTRAINT suspension_scope_check,
    ADD CONSTRAINT suspension_scope_check CHECK (scope IN ('process_instance', 'process_definition', 'type', 'tenant',
        'pause_type', 'pause_category', 'pause_lane', 'pause_all'));

-- A role that may only create jobs must not pause the others: create_job refuses the types of Jobwire itself.
DO $do$
DECLARE
    was    text := pg_get_functiondef((SELECT oid FROM pg_proc WHERE pronamespace = 'jobwire'::regnamespace AND proname = 'new_job'));
    anchor text := $$'name the handler type that runs this job');
    END IF;
$$;
    checks text := $$    IF starts_with(type, 'jobwire.') THEN
        PERFORM jobwire.refuse('type', 'begins with `jobwire.`', 'choose another name: these types change how jobs run, so only '
            'the library and the program create them');
    END IF;
$$;
BEGIN
    IF strpos(was, anchor) = 0 THEN
        RAISE EXCEPTION 'jobwire.new_job is not the function of migration 0002; undo the change, then migrate again';
    END IF;
    EXECUTE replace(was, anchor, anchor || checks);
END
$do$;

-- A role that inserts jobs itself must not pause the others either, unless it may write suspensions.
CREATE FUNCTION jobwire.may_change_gates() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT has_table_privilege(current_user, 'jobwire.suspension', 'INSERT') THEN
        RAISE EXCEPTION 'field `type` begins with `jobwire.`, and % may not write jobwire.suspension; choose another name: such '
            'types change how jobs run', current_user USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION jobwire.may_change_gates FROM PUBLIC;
CREATE TRIGGER may_change_gates BEFORE INSERT ON jobwire.job
    FOR EACH ROW WHEN (starts_with(NEW.type, 'jobwire.')) EXECUTE FUNCTION jobwire.may_change_gates();
CREATE TRIGGER may_change_gates BEFORE INSERT ON jobwire.timer_job
    FOR EACH ROW WHEN (starts_with(NEW.type, 'jobwire.')) EXECUTE FUNCTION jobwire.may_change_gates();
