-- An index for jobs without a turn among those that wait for a fair limit, and a check of add_to_batch.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (19, 1);

-- The index keeps writers away while it is built, and readers go on. The lock is tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.waiting_job IN SHARE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the table of waiting jobs busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

-- Whether a job without a turn waits for a key is asked whenever a job of a fair limit begins to wait. The index of all that wait
-- would read each job with a turn that stands before. By EXPLAIN, this one answers with one entry, for its order by seq also if
-- most waiting jobs have no turn.
CREATE INDEX waiting_job_without_turn ON jobwire.waiting_job (limit_name, key, seq)
    WHERE fair_key IS NULL AND woken_at IS NULL;

-- As in migration 0011, but only for jobs of the caller's transaction. Replacing the function keeps its owner and its grants.
CREATE OR REPLACE FUNCTION jobwire.add_to_batch(batch uuid, job uuid) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    mark text := format('"$batch":"%s"}', batch);
    -- A present number of a transaction, with its epoch.
    next bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
BEGIN
    PERFORM FROM jobwire.batch b WHERE b.id = batch AND b.ended_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        PERFORM jobwire.refuse('batch', format('is %s, which has ended, was cancelled, or does not exist', batch),
            'create a batch, or create the job without one');
    END IF;
    -- The mark tells the node that runs the job of its batch. A job that is older than this transaction may have ended. A job that
    -- another transaction created has a date of this one's time, too. So the writer of the row must be in progress: the row is
    -- visible, so it is this transaction or a savepoint of it. xmin has no epoch: its number is the one with the same 32 bits that
    -- is nearest to the next.
    UPDATE jobwire.job j SET custom_values = (CASE
        WHEN j.custom_values IS NULL THEN '{' || mark
        WHEN btrim(j.custom_values::text, E' \t\n\r') ~ '^\{[ \t\n\r]*\}$' THEN '{' || mark
        ELSE regexp_replace(j.custom_values::text, '\}[ \t\n\r]*$', ',') || mark END)::json
    WHERE j.id = job AND j.repeat IS NULL AND CASE WHEN j.created_at >= now() THEN pg_xact_status(
        (next + ((j.xmin::text::bigint - next + 2147483648) & 4294967295) - 2147483648)::text::xid8) = 'in progress' END
        AND (j.custom_values IS NULL OR json_typeof(j.custom_values) = 'object');
    IF NOT FOUND THEN
        UPDATE jobwire.timer_job j SET custom_values = (CASE
            WHEN j.custom_values IS NULL THEN '{' || mark
            WHEN btrim(j.custom_values::text, E' \t\n\r') ~ '^\{[ \t\n\r]*\}$' THEN '{' || mark
            ELSE regexp_replace(j.custom_values::text, '\}[ \t\n\r]*$', ',') || mark END)::json
        WHERE j.id = job AND j.repeat IS NULL AND CASE WHEN j.created_at >= now() THEN pg_xact_status(
        (next + ((j.xmin::text::bigint - next + 2147483648) & 4294967295) - 2147483648)::text::xid8) = 'in progress' END
            AND (j.custom_values IS NULL OR json_typeof(j.custom_values) = 'object');
    END IF;
    IF NOT FOUND THEN
        PERFORM jobwire.refuse('job', format('is %s, which this transaction did not create, which repeats, or whose custom values are no object', job),
            'give a job that create_job has just returned');
    END IF;
    INSERT INTO jobwire.batch_member (batch_id, job_id) VALUES (batch, job) ON CONFLICT DO NOTHING;
    RETURN job;
END
$$;
