-- Nothing but the number: SQLite reads the checks of a table once in a connection.

INSERT INTO schema_version (version, readable_by) VALUES (13, 1);
