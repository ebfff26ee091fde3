package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;

/** The rows of instances, and the first job of each instance that may run. */
final class Instances {
    /** Maximum number of categories of an instance whose first jobs are found. */
    private static final int MOST = 100;

    /** The row of an instance that this transaction holds. */
    record Execution(boolean isLocked, boolean isSuspended) {}

    private final EngineTables tables;

    Instances(EngineTables tables) {
        this.tables = tables;
    }

    /**
     * Locks the rows of instances until the transaction ends, in the order of their ids. Skips rows
     * that another transaction has locked.
     */
    Map<String, Execution> hold(Connection connection, Collection<String> instances)
            throws SQLException {
        Map<String, Execution> held = new LinkedHashMap<>();
        if (instances.isEmpty()) {
            return held;
        }
        List<String> sorted = List.copyOf(new TreeSet<>(instances));
        Columns has = tables.columns();
        String time = has.oneTable() ? "NULL AS LOCK_TIME_" : "LOCK_TIME_";
        String owner = has.instanceOwner() ? "LOCK_OWNER_" : "NULL AS LOCK_OWNER_";
        String sql = tables.locking(
                "ID_, SUSPENSION_STATE_, " + time + ", " + owner,
                tables.executions(),
                "ID_ IN " + EngineTables.places(sorted.size()));
        tables.query(connection, sql, sorted, 0, row -> held.put(
                row.getString("ID_"),
                new Execution(
                        row.getTimestamp("LOCK_TIME_") != null
                                || row.getString("LOCK_OWNER_") != null,
                        row.getInt("SUSPENSION_STATE_") == 2)));
        return held;
    }

    /**
     * Extends the engine's locks of the instances of these jobs, if they end before this time. Skips
     * rows that another transaction has locked.
     */
    void extend(Connection connection, List<String> jobs, Instant until) throws SQLException {
        String sql = "UPDATE " + tables.executions() + " SET LOCK_TIME_ = ?"
                + " WHERE ID_ = ? AND LOCK_TIME_ < ?";
        for (List<String> part : EngineTables.parts(jobs)) {
            String ending = "LOCK_TIME_ < ? AND ID_ IN (SELECT PROCESS_INSTANCE_ID_ FROM "
                    + tables.jobs() + " WHERE ID_ IN " + EngineTables.places(part.size()) + ")";
            List<Object> parameters = new ArrayList<>(part);
            parameters.add(0, until);
            List<String> instances = tables.query(
                    connection, tables.locking("ID_", tables.executions(), ending), parameters, 0,
                    row -> row.getString("ID_"));
            for (String instance : instances) {
                tables.update(connection, sql, until, instance, until);
            }
        }
    }

    /** Returns the instances among these that exist. Locks nothing. */
    Set<String> existing(Connection connection, Collection<String> instances)
            throws SQLException {
        if (instances.isEmpty()) {
            return new HashSet<>();
        }
        String sql = "SELECT ID_ FROM " + tables.executions() + " WHERE ID_ IN "
                + EngineTables.places(instances.size());
        return new HashSet<>(tables.query(
                connection, sql, List.copyOf(instances), 0, row -> row.getString(1)));
    }

    /** Returns a condition: the instance of a job in this table is not locked, nor a job of it. */
    String free(String alias) {
        String instance = alias + ".PROCESS_INSTANCE_ID_";
        String hasNoJob = "NOT EXISTS (SELECT l.ID_ FROM " + tables.jobs()
                + " l WHERE l.PROCESS_INSTANCE_ID_ = " + instance
                + " AND l.LOCK_EXP_TIME_ IS NOT NULL)";
        return tables.columns().oneTable()
                ? hasNoJob
                : "NOT EXISTS (SELECT e.ID_ FROM " + tables.executions() + " e WHERE e.ID_ = "
                        + instance + " AND e.LOCK_TIME_ IS NOT NULL) AND " + hasNoJob;
    }

    /** Returns the instances among these that have a locked job, of any owner. */
    Set<String> withLockedJob(Connection connection, Collection<String> instances)
            throws SQLException {
        return withLocked(connection, tables.jobs(), instances);
    }

    private Set<String> withLocked(
            Connection connection, String table, Collection<String> instances)
            throws SQLException {
        if (instances.isEmpty()) {
            return Set.of();
        }
        String sql = "SELECT DISTINCT PROCESS_INSTANCE_ID_ FROM " + table
                + " WHERE LOCK_EXP_TIME_ IS NOT NULL AND PROCESS_INSTANCE_ID_ IN "
                + EngineTables.places(instances.size());
        return new HashSet<>(tables.query(
                connection, sql, List.copyOf(instances), 0, row -> row.getString(1)));
    }

    /**
     * Returns the eldest job of an instance that is unlocked, is ready and fulfils a condition. Any
     * number of elder jobs may not fulfil it.
     *
     * @param condition begins with {@code AND}, or is empty
     */
    private Optional<JobRow> first(
            Connection connection, String instance, String condition, Collection<String> values)
            throws SQLException {
        Columns has = tables.columns();
        List<Object> parameters = new ArrayList<>(List.of(instance));
        String ready = JobTable.JOB.condition(has, "", tables.now(connection), parameters);
        parameters.addAll(values);
        String sql = "SELECT " + JobTable.JOB.columns(has) + " FROM " + tables.jobs()
                + " WHERE PROCESS_INSTANCE_ID_ = ? AND LOCK_EXP_TIME_ IS NULL AND " + ready
                + condition + " ORDER BY " + has.byAge();
        List<JobRow> jobs = tables.query(
                connection, sql, parameters, 1, tables.reader(connection, JobTable.JOB));
        return jobs.stream().filter(JobRow::isReady).findFirst();
    }

    /** Returns the first job of each of these instances that the terms allow. They are free. */
    List<JobRow> firsts(Connection connection, Collection<String> free, LockTerms terms)
            throws SQLException {
        List<String> names = new ArrayList<>();
        String allowed = terms.condition(tables.columns(), names);
        List<JobRow> firsts = new ArrayList<>();
        for (String instance : new TreeSet<>(free)) {
            first(connection, instance, allowed, names)
                    .filter(terms::takes)
                    .ifPresent(firsts::add);
        }
        return firsts;
    }

    /**
     * Returns the first job of each category of these instances, which are free. Each may need
     * another node, and a node takes the instance by the hint of a job that it may run.
     */
    List<JobRow> firstsOfEachCategory(Connection connection, Collection<String> free)
            throws SQLException {
        List<JobRow> firsts = new ArrayList<>();
        for (String instance : new TreeSet<>(free)) {
            firsts.addAll(firstOfEachCategory(connection, instance));
        }
        return firsts;
    }

    /** Finds one category after the other: each search leaves out those that were found. */
    private Collection<JobRow> firstOfEachCategory(Connection connection, String instance)
            throws SQLException {
        Map<String, JobRow> found = new LinkedHashMap<>();
        String others = "";
        while (found.size() < MOST) {
            List<String> names = found.keySet().stream().filter(Objects::nonNull).toList();
            Optional<JobRow> next = first(connection, instance, others, names);
            if (next.isEmpty() || found.putIfAbsent(next.get().category(), next.get()) != null
                    || !tables.columns().category()) {
                break;
            }
            others = otherCategories(found.keySet());
        }
        return found.values();
    }

    /** Returns a condition: the category of a job is none of these; null is that of a job without. */
    private static String otherCategories(Set<String> found) {
        boolean hasNone = found.contains(null);
        int names = found.size() - (hasNone ? 1 : 0);
        String other = "CATEGORY_ NOT IN " + EngineTables.places(names);
        if (!hasNone) {
            return " AND (" + LockTerms.WITHOUT_CATEGORY + " OR " + other + ")";
        }
        // At least one character. Oracle has no empty text, and a comparison with it is never true.
        String some = " AND CATEGORY_ LIKE '_%'";
        return names == 0 ? some : some + " AND " + other;
    }

    /**
     * Clears the locks that a dead engine left on instances without a locked job. This transaction
     * holds the rows. Returns the instances.
     */
    Set<String> clearLeft(Connection connection, Map<String, Execution> held)
            throws SQLException {
        Set<String> left = new TreeSet<>();
        held.forEach((instance, execution) -> {
            if (execution.isLocked) {
                left.add(instance);
            }
        });
        left.removeAll(withLockedJob(connection, left));
        if (tables.columns().externalJobs()) {
            // An external worker locks an instance, too.
            left.removeAll(withLocked(connection, tables.table("ACT_RU_EXTERNAL_JOB"), left));
        }
        String owner = tables.columns().instanceOwner() ? "LOCK_OWNER_ = NULL, " : "";
        String sql = "UPDATE " + tables.executions() + " SET " + owner
                + "LOCK_TIME_ = NULL WHERE ID_ = ?";
        for (String instance : left) {
            tables.update(connection, sql, instance);
        }
        return left;
    }
}
