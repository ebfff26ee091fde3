-- As on PostgreSQL: a row that any writer may write stops no other row.
--
--   * A row inserted into set_aside moves a job to the dead letters; the move itself cannot fail.
--   * Triggers bound the length, the size and the range of every field. (SQLite adds no CHECK to a table that is there.) They
--     never judge syntax: what an older program writes still fits. Rows that do not fit are set aside first.

INSERT INTO schema_version (version, readable_by) VALUES (2, 1);

-- The fence of the holder against whom the last strike was counted.
ALTER TABLE job_lease ADD COLUMN struck INTEGER;

-- Move a row of a job table to the dead letters, whatever is in it:
--   INSERT INTO set_aside (source, id, reason) VALUES ('job', '...', 'why');
-- Values that do not fit are cut, or replaced where a part would mean something else. The row as it was becomes the stack, as
-- JSON; a text counts there with its first 262,144 characters, and so does a JSON value of more than 64 MiB. A row whose
-- id stands in another table as well gets the id in `new_id`. The lease of an executable job goes with it. The table
-- itself stays empty.
CREATE TABLE set_aside (
    source TEXT NOT NULL CHECK (source IN ('job', 'timer_job', 'suspended_job', 'dead_letter_job')),
    id     TEXT NOT NULL,
    reason TEXT NOT NULL,
    new_id TEXT NOT NULL DEFAULT (lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)
        || '-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))))
) STRICT;

CREATE TRIGGER set_aside_job AFTER INSERT ON set_aside WHEN NEW.source = 'job' BEGIN
    -- What an earlier attempt left stays behind the row.
    INSERT INTO job_exception (job_id, stack, written_at)
    SELECT CASE WHEN EXISTS (SELECT 1 FROM timer_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM dead_letter_job WHERE id = NEW.id)
            THEN NEW.new_id ELSE id END,
        json_object(
            'table', 'job', 'id', id, 'seq', seq, 'revision', revision, 'kind', kind, 'type', substr(type, 1, 262144),
            'payload', CASE WHEN length(CAST(payload AS BLOB)) <= 67108864 THEN payload ELSE substr(payload, 1, 262144) END,
            'process_instance', substr(process_instance, 1, 262144), 'execution', substr(execution, 1, 262144),
            'process_definition', substr(process_definition, 1, 262144), 'element', substr(element, 1, 262144),
            'tenant', substr(tenant, 1, 262144), 'category', substr(category, 1, 262144),
            'deployment', substr(deployment, 1, 262144), 'priority', priority, 'exclusive', exclusive, 'retries', retries,
            'failures', failures, 'retry_policy', substr(retry_policy, 1, 262144), 'due_at', due_at,
            'repeat', substr(repeat, 1, 262144), 'repeat_until', repeat_until, 'correlation_id', correlation_id,
            'created_at', created_at, 'lane', substr(lane, 1, 262144), 'origin', substr(origin, 1, 262144),
            'exception_message', substr(exception_message, 1, 262144),
            'custom_values', CASE WHEN length(CAST(custom_values AS BLOB)) <= 67108864 THEN custom_values ELSE substr(custom_values, 1, 262144) END,
            'trace_parent', substr(trace_parent, 1, 262144), 'ready_at', ready_at, 'hints', hints),
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)
    FROM job WHERE id = NEW.id
    ON CONFLICT (job_id) DO UPDATE
        SET stack = excluded.stack || char(10) || substr(stack, 1, 64000), written_at = excluded.written_at;
    INSERT OR REPLACE INTO dead_letter_job (
        id, seq, revision, kind, type, payload, process_instance, execution, process_definition, element, tenant, category,
        deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until, correlation_id,
        created_at, lane, origin, exception_message, custom_values, trace_parent, ready_at, hints)
    SELECT
        CASE WHEN EXISTS (SELECT 1 FROM timer_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM dead_letter_job WHERE id = NEW.id)
            THEN NEW.new_id ELSE id END,
        seq, min(max(revision, 0), 999999999) + 1, kind,
        CASE WHEN length(CAST(type AS BLOB)) <= 1024 THEN type ELSE substr(type, 1, 256) END,
        CASE WHEN length(CAST(payload AS BLOB)) <= 1048576 THEN payload ELSE 'null' END,
        CASE WHEN length(CAST(process_instance AS BLOB)) <= 1024 THEN process_instance ELSE substr(process_instance, 1, 256) END,
        CASE WHEN length(CAST(execution AS BLOB)) <= 1024 THEN execution ELSE substr(execution, 1, 256) END,
        CASE WHEN length(CAST(process_definition AS BLOB)) <= 1024 THEN process_definition ELSE substr(process_definition, 1, 256) END,
        CASE WHEN length(CAST(element AS BLOB)) <= 1024 THEN element ELSE substr(element, 1, 256) END,
        CASE WHEN length(CAST(tenant AS BLOB)) <= 1024 THEN tenant ELSE substr(tenant, 1, 256) END,
        CASE WHEN length(CAST(category AS BLOB)) <= 1024 THEN category ELSE substr(category, 1, 256) END,
        CASE WHEN length(CAST(deployment AS BLOB)) <= 1024 THEN deployment ELSE substr(deployment, 1, 256) END, priority,
        exclusive, 0, min(max(failures, 0), 1000000000),
        CASE WHEN length(CAST(retry_policy AS BLOB)) <= 1024 THEN retry_policy END, due_at,
        CASE WHEN length(CAST(repeat AS BLOB)) <= 1024 THEN repeat END, repeat_until, correlation_id, created_at,
        CASE WHEN length(CAST(lane AS BLOB)) <= 64 THEN lane ELSE substr(lane, 1, 16) END,
        CASE WHEN length(CAST(origin AS BLOB)) <= 64 THEN origin ELSE substr(origin, 1, 16) END,
        CASE WHEN length(CAST(NEW.reason AS BLOB)) <= 4000 THEN NEW.reason ELSE substr(NEW.reason, 1, 1000) END,
        CASE WHEN length(CAST(custom_values AS BLOB)) <= 1048576 THEN custom_values END,
        CASE WHEN length(CAST(trace_parent AS BLOB)) <= 1024 THEN trace_parent END,
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), min(max(hints, 0), 1000000000)
    FROM job WHERE id = NEW.id;
    DELETE FROM job WHERE id = NEW.id;
    DELETE FROM job_lease WHERE job_id = NEW.id;
    DELETE FROM set_aside WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER set_aside_timer_job AFTER INSERT ON set_aside WHEN NEW.source = 'timer_job' BEGIN
    -- What an earlier attempt left stays behind the row.
    INSERT INTO job_exception (job_id, stack, written_at)
    SELECT CASE WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM dead_letter_job WHERE id = NEW.id)
            THEN NEW.new_id ELSE id END,
        json_object(
            'table', 'timer_job', 'id', id, 'seq', seq, 'revision', revision, 'kind', kind, 'type', substr(type, 1, 262144),
            'payload', CASE WHEN length(CAST(payload AS BLOB)) <= 67108864 THEN payload ELSE substr(payload, 1, 262144) END,
            'process_instance', substr(process_instance, 1, 262144), 'execution', substr(execution, 1, 262144),
            'process_definition', substr(process_definition, 1, 262144), 'element', substr(element, 1, 262144),
            'tenant', substr(tenant, 1, 262144), 'category', substr(category, 1, 262144),
            'deployment', substr(deployment, 1, 262144), 'priority', priority, 'exclusive', exclusive, 'retries', retries,
            'failures', failures, 'retry_policy', substr(retry_policy, 1, 262144), 'due_at', due_at,
            'repeat', substr(repeat, 1, 262144), 'repeat_until', repeat_until, 'correlation_id', correlation_id,
            'created_at', created_at, 'lane', substr(lane, 1, 262144), 'origin', substr(origin, 1, 262144),
            'exception_message', substr(exception_message, 1, 262144),
            'custom_values', CASE WHEN length(CAST(custom_values AS BLOB)) <= 67108864 THEN custom_values ELSE substr(custom_values, 1, 262144) END,
            'trace_parent', substr(trace_parent, 1, 262144), 'ready_at', ready_at, 'hints', hints),
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)
    FROM timer_job WHERE id = NEW.id
    ON CONFLICT (job_id) DO UPDATE
        SET stack = excluded.stack || char(10) || substr(stack, 1, 64000), written_at = excluded.written_at;
    INSERT OR REPLACE INTO dead_letter_job (
        id, seq, revision, kind, type, payload, process_instance, execution, process_definition, element, tenant, category,
        deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until, correlation_id,
        created_at, lane, origin, exception_message, custom_values, trace_parent, ready_at, hints)
    SELECT
        CASE WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM dead_letter_job WHERE id = NEW.id)
            THEN NEW.new_id ELSE id END,
        seq, min(max(revision, 0), 999999999) + 1, kind,
        CASE WHEN length(CAST(type AS BLOB)) <= 1024 THEN type ELSE substr(type, 1, 256) END,
        CASE WHEN length(CAST(payload AS BLOB)) <= 1048576 THEN payload ELSE 'null' END,
        CASE WHEN length(CAST(process_instance AS BLOB)) <= 1024 THEN process_instance ELSE substr(process_instance, 1, 256) END,
        CASE WHEN length(CAST(execution AS BLOB)) <= 1024 THEN execution ELSE substr(execution, 1, 256) END,
        CASE WHEN length(CAST(process_definition AS BLOB)) <= 1024 THEN process_definition ELSE substr(process_definition, 1, 256) END,
        CASE WHEN length(CAST(element AS BLOB)) <= 1024 THEN element ELSE substr(element, 1, 256) END,
        CASE WHEN length(CAST(tenant AS BLOB)) <= 1024 THEN tenant ELSE substr(tenant, 1, 256) END,
        CASE WHEN length(CAST(category AS BLOB)) <= 1024 THEN category ELSE substr(category, 1, 256) END,
        CASE WHEN length(CAST(deployment AS BLOB)) <= 1024 THEN deployment ELSE substr(deployment, 1, 256) END, priority,
        exclusive, 0, min(max(failures, 0), 1000000000),
        CASE WHEN length(CAST(retry_policy AS BLOB)) <= 1024 THEN retry_policy END, due_at,
        CASE WHEN length(CAST(repeat AS BLOB)) <= 1024 THEN repeat END, repeat_until, correlation_id, created_at,
        CASE WHEN length(CAST(lane AS BLOB)) <= 64 THEN lane ELSE substr(lane, 1, 16) END,
        CASE WHEN length(CAST(origin AS BLOB)) <= 64 THEN origin ELSE substr(origin, 1, 16) END,
        CASE WHEN length(CAST(NEW.reason AS BLOB)) <= 4000 THEN NEW.reason ELSE substr(NEW.reason, 1, 1000) END,
        CASE WHEN length(CAST(custom_values AS BLOB)) <= 1048576 THEN custom_values END,
        CASE WHEN length(CAST(trace_parent AS BLOB)) <= 1024 THEN trace_parent END,
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), min(max(hints, 0), 1000000000)
    FROM timer_job WHERE id = NEW.id;
    DELETE FROM timer_job WHERE id = NEW.id;
    DELETE FROM set_aside WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER set_aside_suspended_job AFTER INSERT ON set_aside WHEN NEW.source = 'suspended_job' BEGIN
    -- What an earlier attempt left stays behind the row.
    INSERT INTO job_exception (job_id, stack, written_at)
    SELECT CASE WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM timer_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM dead_letter_job WHERE id = NEW.id)
            THEN NEW.new_id ELSE id END,
        json_object(
            'table', 'suspended_job', 'id', id, 'seq', seq, 'revision', revision, 'kind', kind,
            'type', substr(type, 1, 262144),
            'payload', CASE WHEN length(CAST(payload AS BLOB)) <= 67108864 THEN payload ELSE substr(payload, 1, 262144) END,
            'process_instance', substr(process_instance, 1, 262144), 'execution', substr(execution, 1, 262144),
            'process_definition', substr(process_definition, 1, 262144), 'element', substr(element, 1, 262144),
            'tenant', substr(tenant, 1, 262144), 'category', substr(category, 1, 262144),
            'deployment', substr(deployment, 1, 262144), 'priority', priority, 'exclusive', exclusive, 'retries', retries,
            'failures', failures, 'retry_policy', substr(retry_policy, 1, 262144), 'due_at', due_at,
            'repeat', substr(repeat, 1, 262144), 'repeat_until', repeat_until, 'correlation_id', correlation_id,
            'created_at', created_at, 'lane', substr(lane, 1, 262144), 'origin', substr(origin, 1, 262144),
            'exception_message', substr(exception_message, 1, 262144),
            'custom_values', CASE WHEN length(CAST(custom_values AS BLOB)) <= 67108864 THEN custom_values ELSE substr(custom_values, 1, 262144) END,
            'trace_parent', substr(trace_parent, 1, 262144), 'ready_at', ready_at, 'hints', hints),
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)
    FROM suspended_job WHERE id = NEW.id
    ON CONFLICT (job_id) DO UPDATE
        SET stack = excluded.stack || char(10) || substr(stack, 1, 64000), written_at = excluded.written_at;
    INSERT OR REPLACE INTO dead_letter_job (
        id, seq, revision, kind, type, payload, process_instance, execution, process_definition, element, tenant, category,
        deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until, correlation_id,
        created_at, lane, origin, exception_message, custom_values, trace_parent, ready_at, hints)
    SELECT
        CASE WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM timer_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM dead_letter_job WHERE id = NEW.id)
            THEN NEW.new_id ELSE id END,
        seq, min(max(revision, 0), 999999999) + 1, kind,
        CASE WHEN length(CAST(type AS BLOB)) <= 1024 THEN type ELSE substr(type, 1, 256) END,
        CASE WHEN length(CAST(payload AS BLOB)) <= 1048576 THEN payload ELSE 'null' END,
        CASE WHEN length(CAST(process_instance AS BLOB)) <= 1024 THEN process_instance ELSE substr(process_instance, 1, 256) END,
        CASE WHEN length(CAST(execution AS BLOB)) <= 1024 THEN execution ELSE substr(execution, 1, 256) END,
        CASE WHEN length(CAST(process_definition AS BLOB)) <= 1024 THEN process_definition ELSE substr(process_definition, 1, 256) END,
        CASE WHEN length(CAST(element AS BLOB)) <= 1024 THEN element ELSE substr(element, 1, 256) END,
        CASE WHEN length(CAST(tenant AS BLOB)) <= 1024 THEN tenant ELSE substr(tenant, 1, 256) END,
        CASE WHEN length(CAST(category AS BLOB)) <= 1024 THEN category ELSE substr(category, 1, 256) END,
        CASE WHEN length(CAST(deployment AS BLOB)) <= 1024 THEN deployment ELSE substr(deployment, 1, 256) END, priority,
        exclusive, 0, min(max(failures, 0), 1000000000),
        CASE WHEN length(CAST(retry_policy AS BLOB)) <= 1024 THEN retry_policy END, due_at,
        CASE WHEN length(CAST(repeat AS BLOB)) <= 1024 THEN repeat END, repeat_until, correlation_id, created_at,
        CASE WHEN length(CAST(lane AS BLOB)) <= 64 THEN lane ELSE substr(lane, 1, 16) END,
        CASE WHEN length(CAST(origin AS BLOB)) <= 64 THEN origin ELSE substr(origin, 1, 16) END,
        CASE WHEN length(CAST(NEW.reason AS BLOB)) <= 4000 THEN NEW.reason ELSE substr(NEW.reason, 1, 1000) END,
        CASE WHEN length(CAST(custom_values AS BLOB)) <= 1048576 THEN custom_values END,
        CASE WHEN length(CAST(trace_parent AS BLOB)) <= 1024 THEN trace_parent END,
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), min(max(hints, 0), 1000000000)
    FROM suspended_job WHERE id = NEW.id;
    DELETE FROM suspended_job WHERE id = NEW.id;
    DELETE FROM set_aside WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER set_aside_dead_letter_job AFTER INSERT ON set_aside WHEN NEW.source = 'dead_letter_job' BEGIN
    -- What an earlier attempt left stays behind the row.
    INSERT INTO job_exception (job_id, stack, written_at)
    SELECT CASE WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM timer_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id)
            THEN NEW.new_id ELSE id END,
        json_object(
            'table', 'dead_letter_job', 'id', id, 'seq', seq, 'revision', revision, 'kind', kind,
            'type', substr(type, 1, 262144),
            'payload', CASE WHEN length(CAST(payload AS BLOB)) <= 67108864 THEN payload ELSE substr(payload, 1, 262144) END,
            'process_instance', substr(process_instance, 1, 262144), 'execution', substr(execution, 1, 262144),
            'process_definition', substr(process_definition, 1, 262144), 'element', substr(element, 1, 262144),
            'tenant', substr(tenant, 1, 262144), 'category', substr(category, 1, 262144),
            'deployment', substr(deployment, 1, 262144), 'priority', priority, 'exclusive', exclusive, 'retries', retries,
            'failures', failures, 'retry_policy', substr(retry_policy, 1, 262144), 'due_at', due_at,
            'repeat', substr(repeat, 1, 262144), 'repeat_until', repeat_until, 'correlation_id', correlation_id,
            'created_at', created_at, 'lane', substr(lane, 1, 262144), 'origin', substr(origin, 1, 262144),
            'exception_message', substr(exception_message, 1, 262144),
            'custom_values', CASE WHEN length(CAST(custom_values AS BLOB)) <= 67108864 THEN custom_values ELSE substr(custom_values, 1, 262144) END,
            'trace_parent', substr(trace_parent, 1, 262144), 'ready_at', ready_at, 'hints', hints),
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)
    FROM dead_letter_job WHERE id = NEW.id
    ON CONFLICT (job_id) DO UPDATE
        SET stack = excluded.stack || char(10) || substr(stack, 1, 64000), written_at = excluded.written_at;
    INSERT OR REPLACE INTO dead_letter_job (
        id, seq, revision, kind, type, payload, process_instance, execution, process_definition, element, tenant, category,
        deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until, correlation_id,
        created_at, lane, origin, exception_message, custom_values, trace_parent, ready_at, hints)
    SELECT
        CASE WHEN EXISTS (SELECT 1 FROM job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM timer_job WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM suspended_job WHERE id = NEW.id)
            THEN NEW.new_id ELSE id END,
        seq, min(max(revision, 0), 999999999) + 1, kind,
        CASE WHEN length(CAST(type AS BLOB)) <= 1024 THEN type ELSE substr(type, 1, 256) END,
        CASE WHEN length(CAST(payload AS BLOB)) <= 1048576 THEN payload ELSE 'null' END,
        CASE WHEN length(CAST(process_instance AS BLOB)) <= 1024 THEN process_instance ELSE substr(process_instance, 1, 256) END,
        CASE WHEN length(CAST(execution AS BLOB)) <= 1024 THEN execution ELSE substr(execution, 1, 256) END,
        CASE WHEN length(CAST(process_definition AS BLOB)) <= 1024 THEN process_definition ELSE substr(process_definition, 1, 256) END,
        CASE WHEN length(CAST(element AS BLOB)) <= 1024 THEN element ELSE substr(element, 1, 256) END,
        CASE WHEN length(CAST(tenant AS BLOB)) <= 1024 THEN tenant ELSE substr(tenant, 1, 256) END,
        CASE WHEN length(CAST(category AS BLOB)) <= 1024 THEN category ELSE substr(category, 1, 256) END,
        CASE WHEN length(CAST(deployment AS BLOB)) <= 1024 THEN deployment ELSE substr(deployment, 1, 256) END, priority,
        exclusive, 0, min(max(failures, 0), 1000000000),
        CASE WHEN length(CAST(retry_policy AS BLOB)) <= 1024 THEN retry_policy END, due_at,
        CASE WHEN length(CAST(repeat AS BLOB)) <= 1024 THEN repeat END, repeat_until, correlation_id, created_at,
        CASE WHEN length(CAST(lane AS BLOB)) <= 64 THEN lane ELSE substr(lane, 1, 16) END,
        CASE WHEN length(CAST(origin AS BLOB)) <= 64 THEN origin ELSE substr(origin, 1, 16) END,
        CASE WHEN length(CAST(NEW.reason AS BLOB)) <= 4000 THEN NEW.reason ELSE substr(NEW.reason, 1, 1000) END,
        CASE WHEN length(CAST(custom_values AS BLOB)) <= 1048576 THEN custom_values END,
        CASE WHEN length(CAST(trace_parent AS BLOB)) <= 1024 THEN trace_parent END,
        CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), min(max(hints, 0), 1000000000)
    FROM dead_letter_job WHERE id = NEW.id;
    DELETE FROM set_aside WHERE rowid = NEW.rowid;
END;

-- Set aside what does not fit.
INSERT INTO set_aside (source, id, reason)
SELECT 'job', id, 'set aside by migration 0002: ' || misfit || '; the stack has the row as it was'
FROM (SELECT id, CASE
    WHEN length(CAST(type AS BLOB)) > 1024 THEN 'type_is_at_most_1024_bytes'
    WHEN length(CAST(process_instance AS BLOB)) > 1024 THEN 'process_instance_is_at_most_1024_bytes'
    WHEN length(CAST(execution AS BLOB)) > 1024 THEN 'execution_is_at_most_1024_bytes'
    WHEN length(CAST(process_definition AS BLOB)) > 1024 THEN 'process_definition_is_at_most_1024_bytes'
    WHEN length(CAST(element AS BLOB)) > 1024 THEN 'element_is_at_most_1024_bytes'
    WHEN length(CAST(tenant AS BLOB)) > 1024 THEN 'tenant_is_at_most_1024_bytes'
    WHEN length(CAST(category AS BLOB)) > 1024 THEN 'category_is_at_most_1024_bytes'
    WHEN length(CAST(deployment AS BLOB)) > 1024 THEN 'deployment_is_at_most_1024_bytes'
    WHEN length(CAST(retry_policy AS BLOB)) > 1024 THEN 'retry_policy_is_at_most_1024_bytes'
    WHEN length(CAST(repeat AS BLOB)) > 1024 THEN 'repeat_is_at_most_1024_bytes'
    WHEN length(CAST(trace_parent AS BLOB)) > 1024 THEN 'trace_parent_is_at_most_1024_bytes'
    WHEN length(CAST(lane AS BLOB)) > 64 THEN 'lane_is_at_most_64_bytes'
    WHEN length(CAST(origin AS BLOB)) > 64 THEN 'origin_is_at_most_64_bytes'
    WHEN length(CAST(exception_message AS BLOB)) > 4096 THEN 'exception_message_is_at_most_4096_bytes'
    WHEN length(CAST(payload AS BLOB)) > 1048576 THEN 'payload_is_at_most_1_mib'
    WHEN length(CAST(custom_values AS BLOB)) > 1048576 THEN 'custom_values_is_at_most_1_mib'
    WHEN revision NOT BETWEEN 0 AND 1000000000 THEN 'revision_is_in_range'
    WHEN hints NOT BETWEEN 0 AND 1000000000 THEN 'hints_is_in_range'
    WHEN failures NOT BETWEEN 0 AND 1000000000 THEN 'failures_is_in_range'
    WHEN retries + failures > 2147483647 THEN 'retries_and_failures_are_in_range'
    END AS misfit FROM job)
WHERE misfit IS NOT NULL;
INSERT INTO set_aside (source, id, reason)
SELECT 'timer_job', id, 'set aside by migration 0002: ' || misfit || '; the stack has the row as it was'
FROM (SELECT id, CASE
    WHEN length(CAST(type AS BLOB)) > 1024 THEN 'type_is_at_most_1024_bytes'
    WHEN length(CAST(process_instance AS BLOB)) > 1024 THEN 'process_instance_is_at_most_1024_bytes'
    WHEN length(CAST(execution AS BLOB)) > 1024 THEN 'execution_is_at_most_1024_bytes'
    WHEN length(CAST(process_definition AS BLOB)) > 1024 THEN 'process_definition_is_at_most_1024_bytes'
    WHEN length(CAST(element AS BLOB)) > 1024 THEN 'element_is_at_most_1024_bytes'
    WHEN length(CAST(tenant AS BLOB)) > 1024 THEN 'tenant_is_at_most_1024_bytes'
    WHEN length(CAST(category AS BLOB)) > 1024 THEN 'category_is_at_most_1024_bytes'
    WHEN length(CAST(deployment AS BLOB)) > 1024 THEN 'deployment_is_at_most_1024_bytes'
    WHEN length(CAST(retry_policy AS BLOB)) > 1024 THEN 'retry_policy_is_at_most_1024_bytes'
    WHEN length(CAST(repeat AS BLOB)) > 1024 THEN 'repeat_is_at_most_1024_bytes'
    WHEN length(CAST(trace_parent AS BLOB)) > 1024 THEN 'trace_parent_is_at_most_1024_bytes'
    WHEN length(CAST(lane AS BLOB)) > 64 THEN 'lane_is_at_most_64_bytes'
    WHEN length(CAST(origin AS BLOB)) > 64 THEN 'origin_is_at_most_64_bytes'
    WHEN length(CAST(exception_message AS BLOB)) > 4096 THEN 'exception_message_is_at_most_4096_bytes'
    WHEN length(CAST(payload AS BLOB)) > 1048576 THEN 'payload_is_at_most_1_mib'
    WHEN length(CAST(custom_values AS BLOB)) > 1048576 THEN 'custom_values_is_at_most_1_mib'
    WHEN revision NOT BETWEEN 0 AND 1000000000 THEN 'revision_is_in_range'
    WHEN hints NOT BETWEEN 0 AND 1000000000 THEN 'hints_is_in_range'
    WHEN failures NOT BETWEEN 0 AND 1000000000 THEN 'failures_is_in_range'
    WHEN retries + failures > 2147483647 THEN 'retries_and_failures_are_in_range'
    END AS misfit FROM timer_job)
WHERE misfit IS NOT NULL;
INSERT INTO set_aside (source, id, reason)
SELECT 'suspended_job', id, 'set aside by migration 0002: ' || misfit || '; the stack has the row as it was'
FROM (SELECT id, CASE
    WHEN length(CAST(type AS BLOB)) > 1024 THEN 'type_is_at_most_1024_bytes'
    WHEN length(CAST(process_instance AS BLOB)) > 1024 THEN 'process_instance_is_at_most_1024_bytes'
    WHEN length(CAST(execution AS BLOB)) > 1024 THEN 'execution_is_at_most_1024_bytes'
    WHEN length(CAST(process_definition AS BLOB)) > 1024 THEN 'process_definition_is_at_most_1024_bytes'
    WHEN length(CAST(element AS BLOB)) > 1024 THEN 'element_is_at_most_1024_bytes'
    WHEN length(CAST(tenant AS BLOB)) > 1024 THEN 'tenant_is_at_most_1024_bytes'
    WHEN length(CAST(category AS BLOB)) > 1024 THEN 'category_is_at_most_1024_bytes'
    WHEN length(CAST(deployment AS BLOB)) > 1024 THEN 'deployment_is_at_most_1024_bytes'
    WHEN length(CAST(retry_policy AS BLOB)) > 1024 THEN 'retry_policy_is_at_most_1024_bytes'
    WHEN length(CAST(repeat AS BLOB)) > 1024 THEN 'repeat_is_at_most_1024_bytes'
    WHEN length(CAST(trace_parent AS BLOB)) > 1024 THEN 'trace_parent_is_at_most_1024_bytes'
    WHEN length(CAST(lane AS BLOB)) > 64 THEN 'lane_is_at_most_64_bytes'
    WHEN length(CAST(origin AS BLOB)) > 64 THEN 'origin_is_at_most_64_bytes'
    WHEN length(CAST(exception_message AS BLOB)) > 4096 THEN 'exception_message_is_at_most_4096_bytes'
    WHEN length(CAST(payload AS BLOB)) > 1048576 THEN 'payload_is_at_most_1_mib'
    WHEN length(CAST(custom_values AS BLOB)) > 1048576 THEN 'custom_values_is_at_most_1_mib'
    WHEN revision NOT BETWEEN 0 AND 1000000000 THEN 'revision_is_in_range'
    WHEN hints NOT BETWEEN 0 AND 1000000000 THEN 'hints_is_in_range'
    WHEN failures NOT BETWEEN 0 AND 1000000000 THEN 'failures_is_in_range'
    WHEN retries + failures > 2147483647 THEN 'retries_and_failures_are_in_range'
    END AS misfit FROM suspended_job)
WHERE misfit IS NOT NULL;
INSERT INTO set_aside (source, id, reason)
SELECT 'dead_letter_job', id, 'set aside by migration 0002: ' || misfit || '; the stack has the row as it was'
FROM (SELECT id, CASE
    WHEN length(CAST(type AS BLOB)) > 1024 THEN 'type_is_at_most_1024_bytes'
    WHEN length(CAST(process_instance AS BLOB)) > 1024 THEN 'process_instance_is_at_most_1024_bytes'
    WHEN length(CAST(execution AS BLOB)) > 1024 THEN 'execution_is_at_most_1024_bytes'
    WHEN length(CAST(process_definition AS BLOB)) > 1024 THEN 'process_definition_is_at_most_1024_bytes'
    WHEN length(CAST(element AS BLOB)) > 1024 THEN 'element_is_at_most_1024_bytes'
    WHEN length(CAST(tenant AS BLOB)) > 1024 THEN 'tenant_is_at_most_1024_bytes'
    WHEN length(CAST(category AS BLOB)) > 1024 THEN 'category_is_at_most_1024_bytes'
    WHEN length(CAST(deployment AS BLOB)) > 1024 THEN 'deployment_is_at_most_1024_bytes'
    WHEN length(CAST(retry_policy AS BLOB)) > 1024 THEN 'retry_policy_is_at_most_1024_bytes'
    WHEN length(CAST(repeat AS BLOB)) > 1024 THEN 'repeat_is_at_most_1024_bytes'
    WHEN length(CAST(trace_parent AS BLOB)) > 1024 THEN 'trace_parent_is_at_most_1024_bytes'
    WHEN length(CAST(lane AS BLOB)) > 64 THEN 'lane_is_at_most_64_bytes'
    WHEN length(CAST(origin AS BLOB)) > 64 THEN 'origin_is_at_most_64_bytes'
    WHEN length(CAST(exception_message AS BLOB)) > 4096 THEN 'exception_message_is_at_most_4096_bytes'
    WHEN length(CAST(payload AS BLOB)) > 1048576 THEN 'payload_is_at_most_1_mib'
    WHEN length(CAST(custom_values AS BLOB)) > 1048576 THEN 'custom_values_is_at_most_1_mib'
    WHEN revision NOT BETWEEN 0 AND 1000000000 THEN 'revision_is_in_range'
    WHEN hints NOT BETWEEN 0 AND 1000000000 THEN 'hints_is_in_range'
    WHEN failures NOT BETWEEN 0 AND 1000000000 THEN 'failures_is_in_range'
    WHEN retries + failures > 2147483647 THEN 'retries_and_failures_are_in_range'
    END AS misfit FROM dead_letter_job)
WHERE misfit IS NOT NULL;

-- No job can belong to an instance, a suspension or a rule beyond these.
DELETE FROM instance_lock WHERE length(CAST(process_instance AS BLOB)) > 1024;
DELETE FROM suspension WHERE length(CAST(value AS BLOB)) > 1024;
DELETE FROM lane_rule WHERE length(CAST(type AS BLOB)) > 1024 OR length(CAST(category AS BLOB)) > 1024
    OR length(CAST(tenant AS BLOB)) > 1024;

CREATE TRIGGER job_fits_on_insert BEFORE INSERT ON job BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.execution AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: execution_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_definition AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_definition_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.element AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: element_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.deployment AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: deployment_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.retry_policy AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: retry_policy_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.repeat AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: repeat_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.trace_parent AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: trace_parent_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.lane AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: lane_is_at_most_64_bytes')
        WHEN length(CAST(NEW.origin AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: origin_is_at_most_64_bytes')
        WHEN length(CAST(NEW.exception_message AS BLOB)) > 4096 THEN RAISE(ABORT, 'CHECK constraint failed: exception_message_is_at_most_4096_bytes')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: payload_is_at_most_1_mib')
        WHEN length(CAST(NEW.custom_values AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: custom_values_is_at_most_1_mib')
        WHEN NEW.revision NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: revision_is_in_range')
        WHEN NEW.hints NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: hints_is_in_range')
        WHEN NEW.failures NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: failures_is_in_range')
        WHEN NEW.retries + NEW.failures > 2147483647 THEN RAISE(ABORT, 'CHECK constraint failed: retries_and_failures_are_in_range')
    END;
END;
CREATE TRIGGER job_fits_on_update BEFORE UPDATE ON job BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.execution AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: execution_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_definition AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_definition_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.element AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: element_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.deployment AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: deployment_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.retry_policy AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: retry_policy_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.repeat AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: repeat_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.trace_parent AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: trace_parent_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.lane AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: lane_is_at_most_64_bytes')
        WHEN length(CAST(NEW.origin AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: origin_is_at_most_64_bytes')
        WHEN length(CAST(NEW.exception_message AS BLOB)) > 4096 THEN RAISE(ABORT, 'CHECK constraint failed: exception_message_is_at_most_4096_bytes')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: payload_is_at_most_1_mib')
        WHEN length(CAST(NEW.custom_values AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: custom_values_is_at_most_1_mib')
        WHEN NEW.revision NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: revision_is_in_range')
        WHEN NEW.hints NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: hints_is_in_range')
        WHEN NEW.failures NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: failures_is_in_range')
        WHEN NEW.retries + NEW.failures > 2147483647 THEN RAISE(ABORT, 'CHECK constraint failed: retries_and_failures_are_in_range')
    END;
END;
CREATE TRIGGER timer_job_fits_on_insert BEFORE INSERT ON timer_job BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.execution AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: execution_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_definition AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_definition_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.element AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: element_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.deployment AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: deployment_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.retry_policy AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: retry_policy_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.repeat AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: repeat_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.trace_parent AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: trace_parent_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.lane AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: lane_is_at_most_64_bytes')
        WHEN length(CAST(NEW.origin AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: origin_is_at_most_64_bytes')
        WHEN length(CAST(NEW.exception_message AS BLOB)) > 4096 THEN RAISE(ABORT, 'CHECK constraint failed: exception_message_is_at_most_4096_bytes')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: payload_is_at_most_1_mib')
        WHEN length(CAST(NEW.custom_values AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: custom_values_is_at_most_1_mib')
        WHEN NEW.revision NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: revision_is_in_range')
        WHEN NEW.hints NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: hints_is_in_range')
        WHEN NEW.failures NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: failures_is_in_range')
        WHEN NEW.retries + NEW.failures > 2147483647 THEN RAISE(ABORT, 'CHECK constraint failed: retries_and_failures_are_in_range')
    END;
END;
CREATE TRIGGER timer_job_fits_on_update BEFORE UPDATE ON timer_job BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.execution AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: execution_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_definition AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_definition_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.element AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: element_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.deployment AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: deployment_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.retry_policy AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: retry_policy_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.repeat AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: repeat_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.trace_parent AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: trace_parent_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.lane AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: lane_is_at_most_64_bytes')
        WHEN length(CAST(NEW.origin AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: origin_is_at_most_64_bytes')
        WHEN length(CAST(NEW.exception_message AS BLOB)) > 4096 THEN RAISE(ABORT, 'CHECK constraint failed: exception_message_is_at_most_4096_bytes')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: payload_is_at_most_1_mib')
        WHEN length(CAST(NEW.custom_values AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: custom_values_is_at_most_1_mib')
        WHEN NEW.revision NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: revision_is_in_range')
        WHEN NEW.hints NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: hints_is_in_range')
        WHEN NEW.failures NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: failures_is_in_range')
        WHEN NEW.retries + NEW.failures > 2147483647 THEN RAISE(ABORT, 'CHECK constraint failed: retries_and_failures_are_in_range')
    END;
END;
CREATE TRIGGER suspended_job_fits_on_insert BEFORE INSERT ON suspended_job BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.execution AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: execution_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_definition AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_definition_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.element AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: element_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.deployment AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: deployment_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.retry_policy AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: retry_policy_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.repeat AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: repeat_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.trace_parent AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: trace_parent_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.lane AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: lane_is_at_most_64_bytes')
        WHEN length(CAST(NEW.origin AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: origin_is_at_most_64_bytes')
        WHEN length(CAST(NEW.exception_message AS BLOB)) > 4096 THEN RAISE(ABORT, 'CHECK constraint failed: exception_message_is_at_most_4096_bytes')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: payload_is_at_most_1_mib')
        WHEN length(CAST(NEW.custom_values AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: custom_values_is_at_most_1_mib')
        WHEN NEW.revision NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: revision_is_in_range')
        WHEN NEW.hints NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: hints_is_in_range')
        WHEN NEW.failures NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: failures_is_in_range')
        WHEN NEW.retries + NEW.failures > 2147483647 THEN RAISE(ABORT, 'CHECK constraint failed: retries_and_failures_are_in_range')
    END;
END;
CREATE TRIGGER suspended_job_fits_on_update BEFORE UPDATE ON suspended_job BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.execution AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: execution_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_definition AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_definition_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.element AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: element_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.deployment AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: deployment_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.retry_policy AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: retry_policy_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.repeat AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: repeat_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.trace_parent AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: trace_parent_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.lane AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: lane_is_at_most_64_bytes')
        WHEN length(CAST(NEW.origin AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: origin_is_at_most_64_bytes')
        WHEN length(CAST(NEW.exception_message AS BLOB)) > 4096 THEN RAISE(ABORT, 'CHECK constraint failed: exception_message_is_at_most_4096_bytes')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: payload_is_at_most_1_mib')
        WHEN length(CAST(NEW.custom_values AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: custom_values_is_at_most_1_mib')
        WHEN NEW.revision NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: revision_is_in_range')
        WHEN NEW.hints NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: hints_is_in_range')
        WHEN NEW.failures NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: failures_is_in_range')
        WHEN NEW.retries + NEW.failures > 2147483647 THEN RAISE(ABORT, 'CHECK constraint failed: retries_and_failures_are_in_range')
    END;
END;
CREATE TRIGGER dead_letter_job_fits_on_insert BEFORE INSERT ON dead_letter_job BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.execution AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: execution_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_definition AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_definition_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.element AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: element_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.deployment AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: deployment_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.retry_policy AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: retry_policy_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.repeat AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: repeat_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.trace_parent AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: trace_parent_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.lane AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: lane_is_at_most_64_bytes')
        WHEN length(CAST(NEW.origin AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: origin_is_at_most_64_bytes')
        WHEN length(CAST(NEW.exception_message AS BLOB)) > 4096 THEN RAISE(ABORT, 'CHECK constraint failed: exception_message_is_at_most_4096_bytes')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: payload_is_at_most_1_mib')
        WHEN length(CAST(NEW.custom_values AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: custom_values_is_at_most_1_mib')
        WHEN NEW.revision NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: revision_is_in_range')
        WHEN NEW.hints NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: hints_is_in_range')
        WHEN NEW.failures NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: failures_is_in_range')
        WHEN NEW.retries + NEW.failures > 2147483647 THEN RAISE(ABORT, 'CHECK constraint failed: retries_and_failures_are_in_range')
    END;
END;
CREATE TRIGGER dead_letter_job_fits_on_update BEFORE UPDATE ON dead_letter_job BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.execution AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: execution_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.process_definition AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_definition_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.element AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: element_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.deployment AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: deployment_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.retry_policy AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: retry_policy_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.repeat AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: repeat_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.trace_parent AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: trace_parent_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.lane AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: lane_is_at_most_64_bytes')
        WHEN length(CAST(NEW.origin AS BLOB)) > 64 THEN RAISE(ABORT, 'CHECK constraint failed: origin_is_at_most_64_bytes')
        WHEN length(CAST(NEW.exception_message AS BLOB)) > 4096 THEN RAISE(ABORT, 'CHECK constraint failed: exception_message_is_at_most_4096_bytes')
        WHEN length(CAST(NEW.payload AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: payload_is_at_most_1_mib')
        WHEN length(CAST(NEW.custom_values AS BLOB)) > 1048576 THEN RAISE(ABORT, 'CHECK constraint failed: custom_values_is_at_most_1_mib')
        WHEN NEW.revision NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: revision_is_in_range')
        WHEN NEW.hints NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: hints_is_in_range')
        WHEN NEW.failures NOT BETWEEN 0 AND 1000000000 THEN RAISE(ABORT, 'CHECK constraint failed: failures_is_in_range')
        WHEN NEW.retries + NEW.failures > 2147483647 THEN RAISE(ABORT, 'CHECK constraint failed: retries_and_failures_are_in_range')
    END;
END;
CREATE TRIGGER instance_lock_fits_on_insert BEFORE INSERT ON instance_lock BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
    END;
END;
CREATE TRIGGER instance_lock_fits_on_update BEFORE UPDATE ON instance_lock BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.process_instance AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: process_instance_is_at_most_1024_bytes')
    END;
END;
CREATE TRIGGER suspension_fits_on_insert BEFORE INSERT ON suspension BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.value AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: value_is_at_most_1024_bytes')
    END;
END;
CREATE TRIGGER suspension_fits_on_update BEFORE UPDATE ON suspension BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.value AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: value_is_at_most_1024_bytes')
    END;
END;
CREATE TRIGGER lane_rule_fits_on_insert BEFORE INSERT ON lane_rule BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
    END;
END;
CREATE TRIGGER lane_rule_fits_on_update BEFORE UPDATE ON lane_rule BEGIN
    SELECT CASE
        WHEN length(CAST(NEW.type AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: type_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.category AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: category_is_at_most_1024_bytes')
        WHEN length(CAST(NEW.tenant AS BLOB)) > 1024 THEN RAISE(ABORT, 'CHECK constraint failed: tenant_is_at_most_1024_bytes')
    END;
END;

-- The order of exclusive jobs is strict while there is a row: no job of an instance starts while an elder sibling waits for a
-- retry, is suspended, or is a dead letter. Else such a job lets its siblings pass. The indexes find the elder ones; they
-- hold exceptions only.
CREATE TABLE strict_order (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    since    INTEGER NOT NULL
) STRICT;
CREATE INDEX timer_job_retries ON timer_job (process_instance, seq) WHERE exclusive AND hints > 0;
CREATE INDEX suspended_job_siblings ON suspended_job (process_instance, seq) WHERE exclusive;
CREATE INDEX dead_letter_job_siblings ON dead_letter_job (process_instance, seq) WHERE exclusive;
