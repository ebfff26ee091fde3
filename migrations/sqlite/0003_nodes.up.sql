-- The nodes of the fleet: which jobs each of them takes. A node writes its row when it starts, when what it takes changes,
-- and once a minute; it deletes the row when it stops. The leader deletes the rows of nodes that died. Names are JSON arrays.

INSERT INTO schema_version (version, readable_by) VALUES (3, 1);

CREATE TABLE node (
    id          TEXT    NOT NULL PRIMARY KEY,
    -- Grows with every change; beats name it, so that other nodes read the row again.
    revision    INTEGER NOT NULL,
    types       TEXT    NOT NULL CHECK (json_valid(types)),
    lanes       TEXT    NOT NULL CHECK (json_valid(lanes)),
    -- NULL: all. A job that names none is for every node.
    deployments TEXT CHECK (json_valid(deployments)),
    categories  TEXT CHECK (json_valid(categories)),
    tenants     TEXT CHECK (json_valid(tenants)),
    host        TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    transport   TEXT    NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
