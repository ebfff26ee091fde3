package dev.jobwire.tables;

import dev.jobwire.tables.Properties.Property;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Instant;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * Returns all jobs to the engine: no expired lock stays. Jobwire's properties stay until no lock is
 * left, since they name the nodes that live when the release is repeated.
 */
public final class Release {
    private static final int PART = 200;
    private static final int MOST = 10_001;

    private final EngineTables tables;
    private final Instances instances;
    private final Properties properties;

    /** Releases the jobs of these tables. */
    public Release(EngineTables tables) {
        this.tables = tables;
        this.instances = new Instances(tables);
        this.properties = new Properties(tables);
    }

    /**
     * The result of a release.
     *
     * @param released the number of locks that were cleared
     * @param left the number of locks that have not expired, or whose rows another transaction has
     *     locked
     */
    public record Released(int released, int left) {}

    /** The progress of a transaction: the last id, and the number of locks that it cleared. */
    private record Part(String last, int cleared) {}

    /**
     * Clears the expired locks of nodes of Jobwire. A lock that has not expired may have an
     * execution. If no lock is left, removes Jobwire's properties.
     */
    public Released all() {
        int released = 0;
        // Each id is greater than a space; an empty text is NULL in Oracle.
        for (Part part = new Part(" ", 0); part.last != null; ) {
            String after = part.last;
            part = tables.transaction(connection -> part(connection, after));
            released += part.cleared;
        }
        int left = tables.transaction(connection -> {
            String sql = "SELECT ID_ FROM " + tables.jobs() + " WHERE LOCK_OWNER_ LIKE ?";
            int locks = tables.query(
                    connection, sql, List.of(EngineTables.OURS + "%"), MOST, row -> true).size();
            if (locks == 0) {
                for (Property row : properties.under(connection, Properties.OURS, 0)) {
                    properties.remove(connection, row.name());
                }
            }
            return locks;
        });
        return new Released(released, left);
    }

    private Part part(Connection connection, String after) throws SQLException {
        Instant now = tables.now(connection);
        String expired = "LOCK_OWNER_ LIKE ? AND (LOCK_EXP_TIME_ IS NULL OR LOCK_EXP_TIME_ < ?)";
        String ours = EngineTables.OURS + "%";
        String sql = "SELECT " + JobTable.JOB.columns(tables.columns()) + " FROM " + tables.jobs()
                + " WHERE ID_ > ? AND " + expired + " ORDER BY ID_";
        List<JobRow> jobs = tables.query(
                connection, sql, List.of(after, ours, now), PART,
                tables.reader(connection, JobTable.JOB));
        Set<String> free = new HashSet<>(tables.hold(
                connection, JobTable.JOB, jobs.stream().map(JobRow::id).toList()));
        String clear = "UPDATE " + tables.jobs() + " SET LOCK_OWNER_ = NULL, LOCK_EXP_TIME_ = NULL"
                + " WHERE ID_ = ? AND " + expired;
        int cleared = 0;
        TreeSet<String> instancesLeft = new TreeSet<>();
        for (JobRow job : jobs) {
            if (free.contains(job.id())) {
                cleared += tables.update(connection, clear, job.id(), ours, now);
                if (job.instance() != null) {
                    instancesLeft.add(job.instance());
                }
            }
        }
        Map<String, Instances.Execution> held =
                new LinkedHashMap<>(instances.hold(connection, instancesLeft));
        instances.clearLeft(connection, held);
        return new Part(jobs.size() < PART ? null : jobs.get(PART - 1).id(), cleared);
    }
}
