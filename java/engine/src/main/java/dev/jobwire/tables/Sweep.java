package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Queries of the leader: jobs that may have lost their hint, and the numbers of jobs. */
public final class Sweep {
    /** Maximum number of jobs that are counted in each table. */
    private static final int COUNTED = 10_001;

    /**
     * A page of unlocked jobs.
     *
     * @param next the id after which the next page begins; null at the end
     */
    public record Page(List<JobRow> jobs, String next, Instant now) {}

    /** The numbers of jobs, each exact up to ten thousand. */
    public record Backlog(
            int locked,
            int executable,
            int timers,
            int deadLetters,
            Instant oldest,
            Instant nextDue,
            Instant now) {}

    /** The number of unlocked jobs with these properties; null for none. */
    public record Kind(String handler, String category, String tenant, int jobs) {}

    private record Properties(String handler, String category, String tenant) {}

    private record Job(Instant created, Instant lockedUntil) {}

    private final EngineTables tables;

    /** Creates queries of these tables. */
    public Sweep(EngineTables tables) {
        this.tables = tables;
    }

    /**
     * Returns unlocked jobs in the order of their ids, at most {@code limit}: of an instance only
     * the eldest of each category, since an elder one may wait for a node of another category, and
     * none of a locked instance.
     *
     * @param after the id after which the page begins; null for the first page
     */
    public Page orphans(String after, Instant createdBefore, int limit) {
        return tables.transaction(connection -> {
            Instant now = tables.now(connection);
            List<Object> parameters = new ArrayList<>();
            String sql = orphans(after, createdBefore, now, parameters);
            List<JobRow> lost = tables.query(
                    connection, sql, parameters, limit,
                    tables.reader(connection, JobTable.JOB));
            String next = lost.size() < limit ? null : lost.get(lost.size() - 1).id();
            return new Page(lost, next, now);
        });
    }

    private String orphans(
            String after, Instant createdBefore, Instant now, List<Object> parameters) {
        Columns has = tables.columns();
        StringBuilder sql = new StringBuilder("SELECT ")
                .append(JobTable.JOB.columns(has)).append(" FROM ").append(tables.jobs())
                .append(" j WHERE j.LOCK_EXP_TIME_ IS NULL AND ")
                .append(JobTable.JOB.condition(has, "j.", now, parameters));
        if (after != null) {
            sql.append(" AND j.ID_ > ?");
            parameters.add(after);
        }
        if (has.createTime() && createdBefore != null) {
            sql.append(" AND j.CREATE_TIME_ <= ?");
            parameters.add(createdBefore);
        }
        return sql.append(" AND ").append(new Instances(tables).free("j"))
                .append(" AND NOT EXISTS (SELECT s.ID_ FROM ").append(tables.jobs())
                .append(" s WHERE s.PROCESS_INSTANCE_ID_ = j.PROCESS_INSTANCE_ID_ AND ")
                .append(has.hasSameNeed()).append(" AND (").append(has.isElder())
                .append(")) ORDER BY j.ID_")
                .toString();
    }

    /** Counts the jobs. */
    public Backlog backlog() {
        Columns has = tables.columns();
        return tables.transaction(connection -> {
            Instant now = tables.now(connection);
            List<Object> parameters = new ArrayList<>();
            String sql = "SELECT " + has.readySince("") + " AS SINCE_, LOCK_EXP_TIME_ FROM "
                    + tables.jobs() + " WHERE "
                    + JobTable.JOB.condition(has, "", now, parameters);
            List<Job> jobs = tables.query(
                    connection, sql, parameters, COUNTED,
                    row -> new Job(
                            instant(row.getTimestamp(1)), instant(row.getTimestamp(2))));
            int locked = (int) jobs.stream()
                    .filter(job -> job.lockedUntil != null && !job.lockedUntil.isBefore(now))
                    .count();
            Instant oldest = jobs.stream()
                    .filter(job -> job.lockedUntil == null && job.created != null)
                    .map(Job::created)
                    .min(Instant::compareTo)
                    .orElse(null);
            return new Backlog(
                    locked, jobs.size(), count(connection, JobTable.TIMER),
                    count(connection, JobTable.DEAD_LETTER), oldest,
                    new Timers(tables).nextDue(connection), now);
        });
    }

    /** Counts the unlocked jobs of each kind. Reads at most ten thousand jobs. */
    public List<Kind> waiting() {
        Columns has = tables.columns();
        String category = has.category() ? "CATEGORY_" : "NULL AS CATEGORY_";
        List<Properties> jobs = tables.transaction(connection -> {
            List<Object> parameters = new ArrayList<>();
            String sql = "SELECT HANDLER_TYPE_, " + category + ", TENANT_ID_ FROM "
                    + tables.jobs() + " WHERE LOCK_EXP_TIME_ IS NULL AND "
                    + JobTable.JOB.condition(has, "", tables.now(connection), parameters);
            return tables.query(
                    connection, sql, parameters, COUNTED,
                    row -> new Properties(
                            row.getString(1), some(row.getString(2)), some(row.getString(3))));
        });
        Map<Properties, Integer> kinds = new LinkedHashMap<>();
        jobs.forEach(job -> kinds.merge(job, 1, Integer::sum));
        List<Kind> counted = new ArrayList<>();
        kinds.forEach((kind, count) ->
                counted.add(new Kind(kind.handler(), kind.category(), kind.tenant(), count)));
        return counted;
    }

    private int count(Connection connection, JobTable table) throws SQLException {
        List<Object> parameters = new ArrayList<>();
        String sql = "SELECT ID_ FROM " + tables.table(table) + " WHERE "
                + table.condition(tables.columns(), "", tables.now(connection), parameters);
        return tables.query(connection, sql, parameters, COUNTED, row -> true).size();
    }

    /** Engines write an empty text if there is no tenant. */
    private static String some(String text) {
        return text == null || text.isEmpty() ? null : text;
    }

    private static Instant instant(Timestamp time) {
        return time == null ? null : time.toInstant();
    }
}
