-- The history of a chaos run: one append-only table beside Jobwire's tables. Triggers write it in the transactions that
-- change the jobs. So a change that is rolled back leaves no row, and no process can write a false one. Handlers add
-- their starts and ends over their own connections.

CREATE SCHEMA chaos;
CREATE SEQUENCE chaos.history_number;

CREATE TABLE chaos.history (
    number      bigint      NOT NULL DEFAULT nextval('chaos.history_number'),
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The start of the statement. The statement saw all transactions that had committed before.
    began       timestamptz NOT NULL DEFAULT statement_timestamp(),
    transaction xid8        NOT NULL DEFAULT pg_current_xact_id(),
    -- A table and the operation on its row; or `start`, `end` or `effect`, written by handlers.
    what        text        NOT NULL,
    job         uuid        NOT NULL,
    owner       uuid,
    fence       bigint,
    expires_at  timestamptz,
    -- The lease's owner and fence before an update.
    old_owner   uuid,
    old_fence   bigint,
    -- The strikes of the job before and after an update, and whether it ran alone.
    old_strikes integer,
    strikes     integer,
    alone       boolean,
    retries     integer,
    -- On insert and delete, the hints of the job; on update, the number of hints that it added to earlier ones.
    hints       integer,
    due_at      timestamptz,
    -- The fields of a new row.
    seq         bigint,
    instance    text,
    exclusive   boolean,
    type        text,
    payload     json,
    correlation uuid,
    repeat      text,
    -- The answer of a handler, and its run: a record that is sent twice is written once.
    answer      text,
    run         uuid,
    -- The time of a start or an end on the machine of the handler, in milliseconds since the start of the machine. It
    -- was read before the row was written: no fault shifts it, and all nodes of a run share it.
    uptime      bigint
);
-- Finds the jobs of a foreign writer, which all have the same correlation id.
CREATE INDEX history_correlation ON chaos.history (correlation, job) WHERE correlation IS NOT NULL;
CREATE UNIQUE INDEX history_run ON chaos.history (run, what) WHERE run IS NOT NULL;

-- Waiting handlers continue as soon as this table has a row.
CREATE TABLE chaos.gate (opened_at timestamptz NOT NULL DEFAULT clock_timestamp());

CREATE FUNCTION chaos.note_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO chaos.history (what, job, retries, hints, due_at, seq, instance, exclusive, type, payload,
            correlation, repeat)
        VALUES (TG_TABLE_NAME || ' insert', NEW.id, NEW.retries, NEW.hints, NEW.due_at, NEW.seq, NEW.process_instance,
            NEW.exclusive, NEW.type, NEW.payload, NEW.correlation_id, NEW.repeat);
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO chaos.history (what, job, retries, hints, due_at)
        VALUES (TG_TABLE_NAME || ' update', NEW.id, NEW.retries,
            CASE WHEN OLD.hints = 0 THEN 0 ELSE NEW.hints - OLD.hints END, NEW.due_at);
    ELSE
        INSERT INTO chaos.history (what, job, retries, hints)
        VALUES (TG_TABLE_NAME || ' delete', OLD.id, OLD.retries, OLD.hints);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION chaos.note_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO chaos.history (what, job, owner, fence, expires_at)
        VALUES ('job_lease insert', NEW.job_id, NEW.owner, NEW.fence, NEW.expires_at);
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO chaos.history (what, job, owner, fence, expires_at, old_owner, old_fence, old_strikes, strikes,
            alone)
        VALUES ('job_lease update', NEW.job_id, NEW.owner, NEW.fence, NEW.expires_at, OLD.owner, OLD.fence, OLD.strikes,
            NEW.strikes, OLD.alone_since IS NOT NULL);
    ELSE
        INSERT INTO chaos.history (what, job, owner, fence, expires_at)
        VALUES ('job_lease delete', OLD.job_id, OLD.owner, OLD.fence, OLD.expires_at);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION chaos.note_parked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.history (what, job) VALUES ('parked', NEW.job_id);
    RETURN NULL;
END
$$;

CREATE TRIGGER chaos AFTER INSERT OR UPDATE ON jobwire.waiting_job
    FOR EACH ROW WHEN (NEW.woken_at IS NULL) EXECUTE FUNCTION chaos.note_parked();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON jobwire.job
    FOR EACH ROW EXECUTE FUNCTION chaos.note_job();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON jobwire.timer_job
    FOR EACH ROW EXECUTE FUNCTION chaos.note_job();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON jobwire.suspended_job
    FOR EACH ROW EXECUTE FUNCTION chaos.note_job();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON jobwire.dead_letter_job
    FOR EACH ROW EXECUTE FUNCTION chaos.note_job();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON jobwire.job_lease
    FOR EACH ROW EXECUTE FUNCTION chaos.note_lease();

-- Rows that cannot be deleted, as if an application's foreign key referred to them or its trigger failed.
CREATE FUNCTION chaos.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.execution = 'refused as a row''s fault' THEN
        RAISE foreign_key_violation USING MESSAGE = 'another table refers to this row';
    ELSE
        RAISE EXCEPTION 'a trigger is broken';
    END IF;
END
$$;
CREATE TRIGGER refuse BEFORE DELETE ON jobwire.job
    FOR EACH ROW WHEN (OLD.execution LIKE 'refused as %') EXECUTE FUNCTION chaos.refuse();
CREATE TRIGGER refuse BEFORE DELETE ON jobwire.timer_job
    FOR EACH ROW WHEN (OLD.execution LIKE 'refused as %') EXECUTE FUNCTION chaos.refuse();
