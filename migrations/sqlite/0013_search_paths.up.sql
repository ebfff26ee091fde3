-- Nothing but the number: SQLite has no functions.

INSERT INTO schema_version (version, readable_by) VALUES (13, 1);
