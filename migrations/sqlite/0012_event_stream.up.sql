-- The event stream: events of jobs, written by triggers in the transaction of the change, and published by the leader.
--
--   * The table `event` has the events that wait to be published.
--   * The table `event_stream` has one row while the stream is switched on. The triggers exist only as long as this row; the
--     program makes them.
--   * The table `event_cause` has a row only inside of a transaction: why its next statements move or delete jobs, where the
--     tables do not show it.

INSERT INTO schema_version (version, readable_by) VALUES (12, 1);

CREATE TABLE event_stream (
    only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    source   TEXT    NOT NULL CHECK (length(CAST(source AS BLOB)) BETWEEN 1 AND 256),
    -- Arrays of names, as JSON. Without types: all.
    kinds    TEXT    NOT NULL CHECK (json_valid(kinds)),
    types    TEXT    CHECK (types IS NULL OR json_valid(types)),
    -- How long an event waits before it is dropped, in microseconds.
    keep     INTEGER NOT NULL CHECK (keep BETWEEN 60000000 AND 316224000000000),
    since    INTEGER NOT NULL
) STRICT;

CREATE TABLE event (
    -- The next number is one more than the largest one ever: the last number of all would stop every writer.
    seq                INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT CHECK (seq < 4611686018427387904),
    -- A UUID without hyphens.
    id                 TEXT    NOT NULL DEFAULT (lower(hex(randomblob(16)))),
    at                 INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CONSTRAINT "at is a moment" CHECK (at BETWEEN -8334601228800000000 AND 8210266876799999999),
    kind               TEXT    NOT NULL CHECK (kind IN ('created', 'timer_scheduled', 'timer_fired', 'locked', 'succeeded', 'failed',
        'retries_decremented', 'dead_lettered', 'cancelled', 'rescheduled', 'incident_opened', 'incident_closed')),
    job_id             TEXT    NOT NULL,
    type               TEXT    NOT NULL,
    process_instance   TEXT,
    process_definition TEXT,
    element            TEXT,
    tenant             TEXT,
    category           TEXT,
    correlation_id     TEXT,
    trace_parent       TEXT,
    attempt            INTEGER,
    retries            INTEGER,
    due_at             INTEGER CONSTRAINT "due_at is a moment" CHECK (due_at BETWEEN -8334601228800000000 AND 8210266876799999999),
    message            TEXT,
    node               TEXT,
    fence              INTEGER
) STRICT;

CREATE TABLE event_cause (
    cause TEXT NOT NULL
) STRICT;
