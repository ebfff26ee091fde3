-- The same shape as on PostgreSQL, without the schema. Ids are text, times are microseconds since
-- 1970 (UTC), booleans are 0 and 1. One process at a time writes; see docs/guarantees.md for the
-- differences. What PostgreSQL's types refuse is refused here by checks: a row that no node can read would hold up others.

CREATE TABLE schema_version (
    version     INTEGER NOT NULL PRIMARY KEY,
    readable_by INTEGER NOT NULL,
    applied_at  INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
) STRICT;
INSERT INTO schema_version (version, readable_by) VALUES (1, 1);

-- Creation order and fences: SQLite has no sequences, and one writer at a time.
CREATE TABLE counter (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO counter (name, value) VALUES ('job_seq', 0), ('fence_seq', 0);

CREATE TABLE job (
    id                 TEXT    NOT NULL PRIMARY KEY CONSTRAINT "id is a UUID in lower case"
        CHECK (id GLOB '????????-????-????-????-????????????' AND id NOT GLOB '*[^-0-9a-f]*' AND length(replace(id, '-', '')) = 32),
    seq                INTEGER NOT NULL,
    revision           INTEGER NOT NULL DEFAULT 1 CHECK (revision BETWEEN 0 AND 2147483647),
    kind               TEXT    NOT NULL DEFAULT 'message' CHECK (kind IN ('message', 'timer', 'history')),
    type               TEXT    NOT NULL CHECK (type <> ''),
    payload            TEXT    NOT NULL DEFAULT 'null' CONSTRAINT "payload is JSON" CHECK (json_valid(payload)),
    process_instance   TEXT,
    execution          TEXT,
    process_definition TEXT,
    element            TEXT,
    tenant             TEXT,
    category           TEXT,
    deployment         TEXT,
    priority           INTEGER NOT NULL DEFAULT 0,
    exclusive          INTEGER NOT NULL DEFAULT 0 CHECK (exclusive = 0 OR process_instance IS NOT NULL),
    retries            INTEGER NOT NULL DEFAULT 3 CHECK (retries BETWEEN 0 AND 2147483647),
    failures           INTEGER NOT NULL DEFAULT 0 CHECK (failures BETWEEN 0 AND 2147483647),
    retry_policy       TEXT,
    due_at             INTEGER CONSTRAINT "due_at is a moment" CHECK (due_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    repeat             TEXT,
    repeat_until       INTEGER CONSTRAINT "repeat_until is a moment" CHECK (repeat_until BETWEEN -8334601228800000000 AND 8210266876799999999),
    correlation_id     TEXT    NOT NULL CONSTRAINT "correlation_id is a UUID in lower case"
        CHECK (correlation_id GLOB '????????-????-????-????-????????????' AND correlation_id NOT GLOB '*[^-0-9a-f]*' AND length(replace(correlation_id, '-', '')) = 32),
    created_at         INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "created_at is a moment" CHECK (created_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    lane               TEXT    NOT NULL DEFAULT 'default',
    origin             TEXT    NOT NULL DEFAULT 'sql',
    exception_message  TEXT,
    custom_values      TEXT    CONSTRAINT "custom_values is JSON" CHECK (custom_values IS NULL OR json_valid(custom_values)),
    trace_parent       TEXT,
    ready_at           INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "ready_at is a moment" CHECK (ready_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    hints              INTEGER NOT NULL DEFAULT 0 CHECK (hints BETWEEN 0 AND 2147483647)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_siblings ON job (process_instance, seq) WHERE exclusive;
CREATE INDEX job_unhinted ON job (seq) WHERE hints = 0;

CREATE TABLE timer_job (
    id                 TEXT    NOT NULL PRIMARY KEY CONSTRAINT "id is a UUID in lower case"
        CHECK (id GLOB '????????-????-????-????-????????????' AND id NOT GLOB '*[^-0-9a-f]*' AND length(replace(id, '-', '')) = 32),
    seq                INTEGER NOT NULL,
    revision           INTEGER NOT NULL DEFAULT 1 CHECK (revision BETWEEN 0 AND 2147483647),
    kind               TEXT    NOT NULL DEFAULT 'message' CHECK (kind IN ('message', 'timer', 'history')),
    type               TEXT    NOT NULL CHECK (type <> ''),
    payload            TEXT    NOT NULL DEFAULT 'null' CONSTRAINT "payload is JSON" CHECK (json_valid(payload)),
    process_instance   TEXT,
    execution          TEXT,
    process_definition TEXT,
    element            TEXT,
    tenant             TEXT,
    category           TEXT,
    deployment         TEXT,
    priority           INTEGER NOT NULL DEFAULT 0,
    exclusive          INTEGER NOT NULL DEFAULT 0 CHECK (exclusive = 0 OR process_instance IS NOT NULL),
    retries            INTEGER NOT NULL DEFAULT 3 CHECK (retries BETWEEN 0 AND 2147483647),
    failures           INTEGER NOT NULL DEFAULT 0 CHECK (failures BETWEEN 0 AND 2147483647),
    retry_policy       TEXT,
    due_at             INTEGER NOT NULL CONSTRAINT "due_at is a moment" CHECK (due_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    repeat             TEXT,
    repeat_until       INTEGER CONSTRAINT "repeat_until is a moment" CHECK (repeat_until BETWEEN -8334601228800000000 AND 8210266876799999999),
    correlation_id     TEXT    NOT NULL CONSTRAINT "correlation_id is a UUID in lower case"
        CHECK (correlation_id GLOB '????????-????-????-????-????????????' AND correlation_id NOT GLOB '*[^-0-9a-f]*' AND length(replace(correlation_id, '-', '')) = 32),
    created_at         INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "created_at is a moment" CHECK (created_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    lane               TEXT    NOT NULL DEFAULT 'default',
    origin             TEXT    NOT NULL DEFAULT 'sql',
    exception_message  TEXT,
    custom_values      TEXT    CONSTRAINT "custom_values is JSON" CHECK (custom_values IS NULL OR json_valid(custom_values)),
    trace_parent       TEXT,
    ready_at           INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "ready_at is a moment" CHECK (ready_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    hints              INTEGER NOT NULL DEFAULT 0 CHECK (hints BETWEEN 0 AND 2147483647)
) STRICT, WITHOUT ROWID;
CREATE INDEX timer_job_due ON timer_job (due_at);

CREATE TABLE suspended_job (
    id                 TEXT    NOT NULL PRIMARY KEY CONSTRAINT "id is a UUID in lower case"
        CHECK (id GLOB '????????-????-????-????-????????????' AND id NOT GLOB '*[^-0-9a-f]*' AND length(replace(id, '-', '')) = 32),
    seq                INTEGER NOT NULL,
    revision           INTEGER NOT NULL DEFAULT 1 CHECK (revision BETWEEN 0 AND 2147483647),
    kind               TEXT    NOT NULL DEFAULT 'message' CHECK (kind IN ('message', 'timer', 'history')),
    type               TEXT    NOT NULL CHECK (type <> ''),
    payload            TEXT    NOT NULL DEFAULT 'null' CONSTRAINT "payload is JSON" CHECK (json_valid(payload)),
    process_instance   TEXT,
    execution          TEXT,
    process_definition TEXT,
    element            TEXT,
    tenant             TEXT,
    category           TEXT,
    deployment         TEXT,
    priority           INTEGER NOT NULL DEFAULT 0,
    exclusive          INTEGER NOT NULL DEFAULT 0 CHECK (exclusive = 0 OR process_instance IS NOT NULL),
    retries            INTEGER NOT NULL DEFAULT 3 CHECK (retries BETWEEN 0 AND 2147483647),
    failures           INTEGER NOT NULL DEFAULT 0 CHECK (failures BETWEEN 0 AND 2147483647),
    retry_policy       TEXT,
    due_at             INTEGER CONSTRAINT "due_at is a moment" CHECK (due_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    repeat             TEXT,
    repeat_until       INTEGER CONSTRAINT "repeat_until is a moment" CHECK (repeat_until BETWEEN -8334601228800000000 AND 8210266876799999999),
    correlation_id     TEXT    NOT NULL CONSTRAINT "correlation_id is a UUID in lower case"
        CHECK (correlation_id GLOB '????????-????-????-????-????????????' AND correlation_id NOT GLOB '*[^-0-9a-f]*' AND length(replace(correlation_id, '-', '')) = 32),
    created_at         INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "created_at is a moment" CHECK (created_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    lane               TEXT    NOT NULL DEFAULT 'default',
    origin             TEXT    NOT NULL DEFAULT 'sql',
    exception_message  TEXT,
    custom_values      TEXT    CONSTRAINT "custom_values is JSON" CHECK (custom_values IS NULL OR json_valid(custom_values)),
    trace_parent       TEXT,
    ready_at           INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "ready_at is a moment" CHECK (ready_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    hints              INTEGER NOT NULL DEFAULT 0 CHECK (hints BETWEEN 0 AND 2147483647)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead_letter_job (
    id                 TEXT    NOT NULL PRIMARY KEY CONSTRAINT "id is a UUID in lower case"
        CHECK (id GLOB '????????-????-????-????-????????????' AND id NOT GLOB '*[^-0-9a-f]*' AND length(replace(id, '-', '')) = 32),
    seq                INTEGER NOT NULL,
    revision           INTEGER NOT NULL DEFAULT 1 CHECK (revision BETWEEN 0 AND 2147483647),
    kind               TEXT    NOT NULL DEFAULT 'message' CHECK (kind IN ('message', 'timer', 'history')),
    type               TEXT    NOT NULL CHECK (type <> ''),
    payload            TEXT    NOT NULL DEFAULT 'null' CONSTRAINT "payload is JSON" CHECK (json_valid(payload)),
    process_instance   TEXT,
    execution          TEXT,
    process_definition TEXT,
    element            TEXT,
    tenant             TEXT,
    category           TEXT,
    deployment         TEXT,
    priority           INTEGER NOT NULL DEFAULT 0,
    exclusive          INTEGER NOT NULL DEFAULT 0 CHECK (exclusive = 0 OR process_instance IS NOT NULL),
    retries            INTEGER NOT NULL DEFAULT 3 CHECK (retries BETWEEN 0 AND 2147483647),
    failures           INTEGER NOT NULL DEFAULT 0 CHECK (failures BETWEEN 0 AND 2147483647),
    retry_policy       TEXT,
    due_at             INTEGER CONSTRAINT "due_at is a moment" CHECK (due_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    repeat             TEXT,
    repeat_until       INTEGER CONSTRAINT "repeat_until is a moment" CHECK (repeat_until BETWEEN -8334601228800000000 AND 8210266876799999999),
    correlation_id     TEXT    NOT NULL CONSTRAINT "correlation_id is a UUID in lower case"
        CHECK (correlation_id GLOB '????????-????-????-????-????????????' AND correlation_id NOT GLOB '*[^-0-9a-f]*' AND length(replace(correlation_id, '-', '')) = 32),
    created_at         INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "created_at is a moment" CHECK (created_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    lane               TEXT    NOT NULL DEFAULT 'default',
    origin             TEXT    NOT NULL DEFAULT 'sql',
    exception_message  TEXT,
    custom_values      TEXT    CONSTRAINT "custom_values is JSON" CHECK (custom_values IS NULL OR json_valid(custom_values)),
    trace_parent       TEXT,
    ready_at           INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "ready_at is a moment" CHECK (ready_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    hints              INTEGER NOT NULL DEFAULT 0 CHECK (hints BETWEEN 0 AND 2147483647)
) STRICT, WITHOUT ROWID;

CREATE TABLE job_exception (
    job_id     TEXT    NOT NULL PRIMARY KEY,
    stack      TEXT    NOT NULL,
    written_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE job_lease (
    job_id     TEXT    NOT NULL PRIMARY KEY,
    owner      TEXT,
    fence      INTEGER NOT NULL,
    locked_at  INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    alone_since INTEGER,
    strikes    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE instance_lock (
    process_instance TEXT NOT NULL PRIMARY KEY,
    job_id           TEXT,
    owner            TEXT,
    fence            INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE suspension (
    scope TEXT    NOT NULL CHECK (scope IN ('process_instance', 'process_definition', 'type', 'tenant')),
    value TEXT    NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (scope, value)
) STRICT, WITHOUT ROWID;

-- Which lane a job gets whose creator names none: that of the first rule, by position, all of whose
-- conditions hold (NULL asks nothing), else `default`.
CREATE TABLE lane_rule (
    position     INTEGER NOT NULL PRIMARY KEY,
    type         TEXT,
    category     TEXT,
    tenant       TEXT,
    min_priority INTEGER,
    max_priority INTEGER,
    lane         TEXT    NOT NULL CHECK (length(lane) BETWEEN 1 AND 64 AND lane NOT GLOB '*[^A-Za-z0-9._-]*')
) STRICT;

CREATE TABLE leader (
    role       TEXT    NOT NULL PRIMARY KEY,
    node       TEXT    NOT NULL,
    term       INTEGER NOT NULL,
    transport  TEXT    NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE event_log (
    job_id           TEXT    NOT NULL,
    process_instance TEXT    NOT NULL,
    activity         TEXT    NOT NULL,
    position         INTEGER NOT NULL,
    fence            INTEGER NOT NULL,
    node             TEXT    NOT NULL,
    started_at       INTEGER NOT NULL,
    ended_at         INTEGER NOT NULL
) STRICT;
CREATE INDEX event_log_instance ON event_log (process_instance, position);
