DELETE FROM suspension WHERE scope = 'element';
CREATE TABLE former_suspension AS SELECT scope, value, since FROM suspension;
DROP TABLE suspension;
CREATE TABLE suspension (
    scope TEXT    NOT NULL CHECK (scope IN ('process_instance', 'process_definition', 'type', 'tenant',
        'pause_type', 'pause_category', 'pause_lane', 'pause_all')),
    value TEXT    NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (scope, value)
) STRICT, WITHOUT ROWID;
INSERT INTO suspension (scope, value, since) SELECT scope, value, since FROM former_suspension;
DROP TABLE former_suspension;
CREATE TRIGGER suspension_fits_on_insert BEFORE INSERT ON suspension BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.value AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: value_is_at_most_1024_bytes')
    END;
END;
CREATE TRIGGER suspension_fits_on_update BEFORE UPDATE ON suspension BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.value AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: value_is_at_most_1024_bytes')
    END;
END;
DELETE FROM schema_version WHERE version = 16;
