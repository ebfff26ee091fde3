-- The dead letters that were set aside stay.
DROP FUNCTION jobwire.set_aside(text, uuid[], text);
DROP FUNCTION jobwire.cut(text, integer);

DO $$
DECLARE
    bound record;
BEGIN
    FOR bound IN
        SELECT conrelid::regclass AS source, conname FROM pg_constraint
        WHERE connamespace = 'jobwire'::regnamespace AND contype = 'c'
          AND (conname LIKE '%\_is\_at\_most\_%' OR conname LIKE '%\_in\_range')
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', bound.source, bound.conname);
    END LOOP;
END
$$;

ALTER TABLE jobwire.job_lease DROP COLUMN struck;
DELETE FROM jobwire.schema_version WHERE version = 2;
