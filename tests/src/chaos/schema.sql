-- What the chaos suite adds to a database with Jobwire's tables: an append-only history that the
-- database itself writes, by triggers, in the transactions that make it. What was rolled back is not in
-- it, and no process can falsify it. Handlers add their starts and ends, over connections of their own.

CREATE SCHEMA chaos;
CREATE SEQUENCE chaos.history_number;

CREATE TABLE chaos.history (
    number      bigint      NOT NULL DEFAULT nextval('chaos.history_number'),
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the statement began that did it: what had committed before, it saw.
    began       timestamptz NOT NULL DEFAULT statement_timestamp(),
    transaction xid8        NOT NULL DEFAULT pg_current_xact_id(),
    -- A table and what was done to its row; or `start`, `end`, `effect`, by handlers.
    what        text        NOT NULL,
    job         uuid        NOT NULL,
    owner       uuid,
    fence       bigint,
    expires_at  timestamptz,
    -- Before an update of a lease.
    old_owner   uuid,
    old_fence   bigint,
    -- What is counted against the job, before and after; and whether it ran alone.
    old_strikes integer,
    strikes     integer,
    alone       boolean,
    retries     integer,
    -- How many there are; after an update how many came on top of earlier ones.
    hints       integer,
    due_at      timestamptz,
    -- What a job was created with.
    seq         bigint,
    instance    text,
    exclusive   boolean,
    type        text,
    payload     json,
    correlation uuid,
    repeat      text,
    -- What a handler answered; and its run, so that a record is written once however often it is tried.
    answer      text,
    run         uuid
);
-- For the jobs of a foreign writer, which all have the same correlation id.
CREATE INDEX history_correlation ON chaos.history (correlation, job) WHERE correlation IS NOT NULL;
CREATE UNIQUE INDEX history_run ON chaos.history (run, what) WHERE run IS NOT NULL;

-- A row here lets handlers go on that were told to wait.
CREATE TABLE chaos.gate (opened_at timestamptz NOT NULL DEFAULT clock_timestamp());

CREATE FUNCTION chaos.note_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO chaos.history (what, job, retries, hints, due_at, seq, instance, exclusive, type, payload, correlation,
            repeat)
        VALUES (TG_TABLE_NAME || ' insert', NEW.id, NEW.retries, NEW.hints, NEW.due_at, NEW.seq, NEW.process_instance,
            NEW.exclusive, NEW.type, NEW.payload, NEW.correlation_id, NEW.repeat);
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO chaos.history (what, job, retries, hints, due_at)
        VALUES (TG_TABLE_NAME || ' update', NEW.id, NEW.retries, CASE WHEN OLD.hints = 0 THEN 0 ELSE NEW.hints - OLD.hints END,
            NEW.due_at);
    ELSE
        INSERT INTO chaos.history (what, job, retries, hints) VALUES (TG_TABLE_NAME || ' delete', OLD.id, OLD.retries, OLD.hints);
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
        INSERT INTO chaos.history (what, job, owner, fence, expires_at, old_owner, old_fence, old_strikes, strikes, alone)
        VALUES ('job_lease update', NEW.job_id, NEW.owner, NEW.fence, NEW.expires_at, OLD.owner, OLD.fence, OLD.strikes,
            NEW.strikes, OLD.alone_since IS NOT NULL);
    ELSE
        INSERT INTO chaos.history (what, job, owner, fence, expires_at)
        VALUES ('job_lease delete', OLD.job_id, OLD.owner, OLD.fence, OLD.expires_at);
    END IF;
    RETURN NULL;
END
$$;

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

-- Rows that cannot go, as if a table of somebody else's referred to them (or a trigger of theirs were broken).
CREATE FUNCTION chaos.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.execution = 'refused as a row''s fault' THEN
        RAISE foreign_key_violation USING MESSAGE = 'somebody refers to this row';
    ELSE
        RAISE EXCEPTION 'a trigger is broken';
    END IF;
END
$$;
CREATE TRIGGER refuse BEFORE DELETE ON jobwire.job
    FOR EACH ROW WHEN (OLD.execution LIKE 'refused as %') EXECUTE FUNCTION chaos.refuse();
CREATE TRIGGER refuse BEFORE DELETE ON jobwire.timer_job
    FOR EACH ROW WHEN (OLD.execution LIKE 'refused as %') EXECUTE FUNCTION chaos.refuse();
