-- The attempts of nodes that die. The row of a node names the types whose attempts it records, so that any leader can record
-- the attempts whose leases it ends.

INSERT INTO schema_version (version, readable_by) VALUES (14, 1);

-- An object of types, each with the milliseconds for which a row is kept. NULL: the node records none, or its program is older.
ALTER TABLE node ADD COLUMN attempts_kept TEXT CHECK (json_valid(attempts_kept));
