-- Suspensions of all versions of a process definition, by its key and its tenant. The value has both names: the key, which has no
-- colon, and, if there is a tenant, a colon and the tenant. A program that does not know the word goes on running the jobs. SQLite
-- can't change a CHECK, so the table is made anew.

INSERT INTO schema_version (version, readable_by) VALUES (20, 1);

CREATE TABLE former_suspension AS SELECT scope, value, since FROM suspension;
DROP TABLE suspension;
CREATE TABLE suspension (
    scope TEXT    NOT NULL CHECK (scope IN ('process_instance', 'process_definition', 'definition_key', 'element',
        'type', 'tenant', 'pause_type', 'pause_category', 'pause_lane', 'pause_all')),
    value TEXT    NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (scope, value)
) STRICT, WITHOUT ROWID;
INSERT INTO suspension (scope, value, since) SELECT scope, value, since FROM former_suspension;
DROP TABLE former_suspension;
-- Each of two names has at most 1,024 bytes.
CREATE TRIGGER suspension_fits_on_insert BEFORE INSERT ON suspension BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.value AS BLOB)) > CASE WHEN NEW.scope IN ('element', 'definition_key') THEN 2053 ELSE 1024 END
            THEN RAISE(ABORT, 'CHECK constraint failed: value_is_at_most_1024_bytes_or_2053_of_two_names')
    END;
END;
CREATE TRIGGER suspension_fits_on_update BEFORE UPDATE ON suspension BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.value AS BLOB)) > CASE WHEN NEW.scope IN ('element', 'definition_key') THEN 2053 ELSE 1024 END
            THEN RAISE(ABORT, 'CHECK constraint failed: value_is_at_most_1024_bytes_or_2053_of_two_names')
    END;
END;
