-- Priorities. A node may take the jobs of a range of priorities only: its row names the range, both ends included. A job gets
-- its priority by the rules of the table `priority_rule`, and a job whose lane nobody named changes its lane with its priority.

INSERT INTO jobwire.schema_version (version, readable_by) VALUES (7, 1);

-- Every statement about jobs needs these tables, so the locks are tried again and again, each time for a moment.
DO $$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', '3s', true);
    FOR attempt IN 1..20 LOOP
        BEGIN
            LOCK TABLE jobwire.job, jobwire.timer_job, jobwire.suspended_job, jobwire.dead_letter_job, jobwire.node
                IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 20 THEN
                RAISE EXCEPTION 'a transaction keeps the job tables busy; end it (pg_stat_activity shows it), then migrate again'
                    USING ERRCODE = 'lock_not_available';
            END IF;
            PERFORM pg_sleep(1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$$;

-- NULL: no bound. An older program does not know the columns: its leader counts the node as one that takes every priority.
ALTER TABLE jobwire.node ADD COLUMN min_priority bigint, ADD COLUMN max_priority bigint;

-- Whether the creator of the job named its lane. NULL, as in rows of older programs: not known, and the lane stays.
ALTER TABLE jobwire.job ADD COLUMN lane_named boolean;
ALTER TABLE jobwire.timer_job ADD COLUMN lane_named boolean;
ALTER TABLE jobwire.suspended_job ADD COLUMN lane_named boolean;
ALTER TABLE jobwire.dead_letter_job ADD COLUMN lane_named boolean;

-- The priorities of new jobs; small by nature. The first of these rules that fits a job decides: an override of its job
-- definition, its own priority, the rule of its type, that of its process definition, that of its kind. Without one it is 0.
-- An empty name fits every job; a rule with more names comes before one with fewer.
CREATE TABLE jobwire.priority_rule (
    scope              text        NOT NULL CHECK (scope IN ('override', 'type', 'process_definition', 'history', 'default')),
    type               text        NOT NULL DEFAULT '',
    process_definition text        NOT NULL DEFAULT '',
    element            text        NOT NULL DEFAULT '',
    priority           bigint      NOT NULL,
    since              timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT names_fit_the_scope CHECK (scope = 'override'
        OR element = '' AND (scope = 'type' OR type = '') AND (scope = 'process_definition' OR process_definition = '')),
    CONSTRAINT texts_are_at_most_1024_bytes CHECK (
        greatest(octet_length(type), octet_length(process_definition), octet_length(element)) <= 1024),
    PRIMARY KEY (scope, type, process_definition, element)
);

-- The priority of a new job by the rules; for create_job, and for writers that fill the job tables themselves.
CREATE FUNCTION jobwire.priority_of(
    type               text,
    process_definition text   DEFAULT NULL,
    element            text   DEFAULT NULL,
    own                bigint DEFAULT NULL,
    kind               text   DEFAULT 'message'
) RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
#variable_conflict use_variable
BEGIN
    IF NOT EXISTS (SELECT FROM jobwire.priority_rule) THEN
        RETURN coalesce(own, 0);
    END IF;
    RETURN coalesce(
        (SELECT p.priority FROM jobwire.priority_rule p
         WHERE p.scope = 'override' AND p.type = priority_of.type AND p.process_definition IN ('', priority_of.process_definition)
           AND p.element IN ('', priority_of.element)
         ORDER BY p.element = '', p.process_definition = '' LIMIT 1),
        own,
        (SELECT p.priority FROM jobwire.priority_rule p WHERE p.scope = 'type' AND p.type = priority_of.type),
        (SELECT p.priority FROM jobwire.priority_rule p
         WHERE p.scope = 'process_definition' AND p.process_definition = priority_of.process_definition),
        (SELECT p.priority FROM jobwire.priority_rule p
         WHERE p.scope = CASE kind WHEN 'history' THEN 'history' ELSE 'default' END),
        0);
END
$$;

-- Who reads or writes the rules of lanes may do the same with those of priorities, and who has rights on the column `lane` has
-- the same on `lane_named`.
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role, a.privilege_type AS privilege
        FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
        WHERE c.oid = 'jobwire.lane_rule'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON jobwire.priority_rule TO %s', held.privilege, held.role);
    END LOOP;
    FOR held IN
        SELECT DISTINCT c.attrelid::regclass::text AS relation, a.privilege_type AS privilege,
            CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
        FROM pg_attribute c, aclexplode(c.attacl) a
        WHERE c.attname = 'lane' AND c.attrelid IN ('jobwire.job'::regclass, 'jobwire.timer_job'::regclass,
            'jobwire.suspended_job'::regclass, 'jobwire.dead_letter_job'::regclass)
    LOOP
        EXECUTE format('GRANT %s (lane_named) ON %s TO %s', held.privilege, held.relation, held.role);
    END LOOP;
END
$$;

-- create_job gives a job its priority by the rules, and says whether its caller named the lane.
DO $do$
DECLARE
    was     text := pg_get_functiondef((SELECT oid FROM pg_proc WHERE pronamespace = 'jobwire'::regnamespace AND proname = 'new_job'));
    anchor  text := $$    hint_lane := coalesce(lane, jobwire.lane_of(type, category, tenant, priority));
$$;
    ruled   text := $$    priority := jobwire.priority_of(type, process_definition, element, priority);
$$;
    columns text := $$custom_values, trace_parent)
        VALUES$$;
    row_end text := $$hint_lane, custom_values, trace_parent);$$;
BEGIN
    IF strpos(was, anchor) = 0 OR strpos(was, columns) = 0 OR strpos(was, row_end) = 0 THEN
        RAISE EXCEPTION 'jobwire.new_job is not the function of migration 0006; undo the change, then migrate again';
    END IF;
    was := replace(was, anchor, ruled || anchor);
    was := replace(was, columns, replace(columns, 'trace_parent', 'trace_parent, lane_named'));
    EXECUTE replace(was, row_end, replace(row_end, 'trace_parent', 'trace_parent, lane IS NOT NULL'));
END
$do$;

-- A call without a priority is told from one with the priority 0. These functions may belong to a role that this user may not
-- act for; then such a job has 0 as its own priority.
DO $do$
DECLARE
    door    record;
    changed text;
BEGIN
    FOR door IN SELECT oid, proname, pg_get_functiondef(oid) AS was FROM pg_proc
        WHERE pronamespace = 'jobwire'::regnamespace AND proname IN ('create_job', 'create_job_hint', 'create_history_job')
    LOOP
        changed := replace(door.was, 'priority bigint DEFAULT 0', 'priority bigint DEFAULT NULL::bigint');
        IF door.proname = 'create_history_job' THEN
            changed := replace(changed, 'coalesce(priority, 0)',
                $$jobwire.priority_of(type, process_definition, element, priority, 'history')$$);
            changed := replace(changed, $$lane, custom_values, trace_parent)
    VALUES$$, $$lane, custom_values, trace_parent, lane_named)
    VALUES$$);
            changed := replace(changed, $$coalesce(lane, 'history'), custom_values, trace_parent)$$,
                $$coalesce(lane, 'history'), custom_values, trace_parent, true)$$);
        END IF;
        EXECUTE changed;
    END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE WARNING 'jobs that create_job creates without a priority get 0, whatever the rules: %', SQLERRM
        USING HINT = 'docs/operating/databases.md says what an administrator can do.';
END
$do$;
