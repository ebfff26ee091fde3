CREATE OR REPLACE FUNCTION jobwire.add_to_batch(batch uuid, job uuid) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    mark text := format('"$batch":"%s"}', batch);
BEGIN
    PERFORM FROM jobwire.batch b WHERE b.id = batch AND b.ended_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        PERFORM jobwire.refuse('batch', format('is %s, which has ended, was cancelled, or does not exist', batch),
            'create a batch, or create the job without one');
    END IF;
    -- The mark tells the node that runs the job of its batch. A job that is older than this transaction may have ended.
    UPDATE jobwire.job j SET custom_values = (CASE
        WHEN j.custom_values IS NULL THEN '{' || mark
        WHEN btrim(j.custom_values::text, E' \t\n\r') ~ '^\{[ \t\n\r]*\}$' THEN '{' || mark
        ELSE regexp_replace(j.custom_values::text, '\}[ \t\n\r]*$', ',') || mark END)::json
    WHERE j.id = job AND j.created_at >= now() AND j.repeat IS NULL
        AND (j.custom_values IS NULL OR json_typeof(j.custom_values) = 'object');
    IF NOT FOUND THEN
        UPDATE jobwire.timer_job j SET custom_values = (CASE
            WHEN j.custom_values IS NULL THEN '{' || mark
            WHEN btrim(j.custom_values::text, E' \t\n\r') ~ '^\{[ \t\n\r]*\}$' THEN '{' || mark
            ELSE regexp_replace(j.custom_values::text, '\}[ \t\n\r]*$', ',') || mark END)::json
        WHERE j.id = job AND j.created_at >= now() AND j.repeat IS NULL
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

DROP INDEX jobwire.waiting_job_without_turn;
DELETE FROM jobwire.schema_version WHERE version = 19;
