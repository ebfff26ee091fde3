DELETE FROM suspension WHERE scope = 'definition_key';
CREATE TABLE former_suspension AS SELECT scope, value, since FROM suspension;
DROP TABLE suspension;
CREATE TABLE suspension (
    scope TEXT    NOT NULL CHECK (scope IN ('process_instance', 'process_definition', 'element', 'type', 'tenant',
        'pause_type', 'pause_category', 'pause_lane', 'pause_all')),
    value TEXT    NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (scope, value)
) STRICT, WITHOUT ROWID;
INSERT INTO suspension (scope, value, since) SELECT scope, value, since FROM former_suspension;
DROP TABLE former_suspension;
CREATE TRIGGER suspension_fits_on_insert BEFORE INSERT ON suspension BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.value AS BLOB)) > CASE NEW.scope WHEN 'element' THEN 2053 ELSE 1024 END
            THEN RAISE(ABORT, 'CHECK constraint failed: value_is_at_most_1024_bytes_or_2053_of_an_element')
    END;
END;
CREATE TRIGGER suspension_fits_on_update BEFORE UPDATE ON suspension BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.value AS BLOB)) > CASE NEW.scope WHEN 'element' THEN 2053 ELSE 1024 END
            THEN RAISE(ABORT, 'CHECK constraint failed: value_is_at_most_1024_bytes_or_2053_of_an_element')
    END;
END;
DELETE FROM schema_version WHERE version = 20;
