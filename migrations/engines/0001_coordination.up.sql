-- What Jobwire keeps beside the tables of an engine: who leads, which nodes live, and the numbers of locks. The engine's
-- tables have no place for it. The column `engine` tells several engines in one database apart.

CREATE TABLE jobwire_engine.schema_version (
    version     integer     NOT NULL PRIMARY KEY,
    -- The oldest version that a program must know to work with this schema.
    readable_by integer     NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO jobwire_engine.schema_version (version, readable_by) VALUES (1, 1);

-- One number for each lock of any job.
CREATE SEQUENCE jobwire_engine.fence AS bigint;

CREATE TABLE jobwire_engine.leader (
    engine     text        NOT NULL,
    node       uuid        NOT NULL,
    term       bigint      NOT NULL,
    transport  text        NOT NULL,
    expires_at timestamptz NOT NULL,
    -- The snapshot of the last look for new jobs: what it showed was hinted.
    seen       text,
    CONSTRAINT texts_are_at_most_1024_bytes CHECK (octet_length(engine) <= 1024 AND octet_length(transport) <= 1024),
    PRIMARY KEY (engine)
);

CREATE TABLE jobwire_engine.node (
    engine      text        NOT NULL,
    id          uuid        NOT NULL,
    -- Grows with every change; beats name it, so that other nodes read the row again.
    revision    bigint      NOT NULL,
    types       text[]      NOT NULL,
    lanes       text[]      NOT NULL,
    -- NULL: all. A job that names none is for every node.
    deployments text[],
    categories  text[],
    tenants     text[],
    host        text        NOT NULL,
    version     text        NOT NULL,
    transport   text        NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT names_are_at_most_4096 CHECK (
        cardinality(types) <= 4096 AND cardinality(lanes) <= 4096 AND coalesce(cardinality(deployments), 0) <= 4096
        AND coalesce(cardinality(categories), 0) <= 4096 AND coalesce(cardinality(tenants), 0) <= 4096),
    CONSTRAINT texts_are_at_most_1024_bytes CHECK (
        octet_length(engine) <= 1024 AND octet_length(host) <= 1024 AND octet_length(version) <= 1024
        AND octet_length(transport) <= 1024),
    PRIMARY KEY (id)
) WITH (fillfactor = 50);
