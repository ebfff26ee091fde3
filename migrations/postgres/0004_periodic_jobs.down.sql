DROP TABLE jobwire.periodic_job;

-- As migration 0002 made it.
CREATE OR REPLACE FUNCTION jobwire.bad_repeat(given text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    value text := btrim(given, E' \t\n\f\r');
    times text := substr(split_part(value, '/', 1), 2);
BEGIN
    IF NOT starts_with(value, 'R') OR strpos(value, '/') = 0 THEN
        RETURN format('`%s` is not of the form R3/PT10M or R/PT10M', given);
    END IF;
    IF times <> '' AND (times !~ '^[+]?[0-9]+$' OR ltrim(times, '+')::numeric NOT BETWEEN 1 AND 4294967295) THEN
        RETURN format('the count in `%s` is not a number of 1 or more', given);
    END IF;
    RETURN jobwire.bad_duration(substr(value, strpos(value, '/') + 1));
END
$$;

DELETE FROM jobwire.schema_version WHERE version = 4;
