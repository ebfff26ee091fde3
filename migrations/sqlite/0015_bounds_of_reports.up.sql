-- Nothing but the number: only the owner of the file writes it.

INSERT INTO schema_version (version, readable_by) VALUES (15, 1);
