package dev.jobwire.tables;

import dev.jobwire.tables.Properties.Property;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;

/** Hands everything back to the engine: no lock and no row of Jobwire stays. */
public final class Release {
    private static final int PART = 200;

    private final EngineTables tables;
    private final Instances instances;
    private final Properties properties;

    /** Releases the jobs of these tables. */
    public Release(EngineTables tables) {
        this.tables = tables;
        this.instances = new Instances(tables);
        this.properties = new Properties(tables);
    }

    /** Clears all locks of nodes of Jobwire and removes its properties. Returns the number of locks. */
    public int all() {
        int released = 0;
        for (int part = PART; part == PART; ) {
            part = tables.transaction(this::part);
            released += part;
        }
        tables.transaction(connection -> {
            for (Property row : properties.under(connection, Properties.OURS, 0)) {
                properties.remove(connection, row.name());
            }
            return null;
        });
        return released;
    }

    private int part(Connection connection) throws SQLException {
        String sql = "SELECT " + JobTable.JOB.columns(tables.columns()) + " FROM " + tables.jobs()
                + " WHERE LOCK_OWNER_ LIKE 'jobwire:%' ORDER BY ID_";
        List<JobRow> jobs = tables.query(
                connection, sql, List.of(), PART, row -> JobRow.of(JobTable.JOB, row));
        String clear = "UPDATE " + tables.jobs() + " SET LOCK_OWNER_ = NULL, LOCK_EXP_TIME_ = NULL"
                + " WHERE ID_ = ? AND LOCK_OWNER_ = ?";
        int cleared = 0;
        TreeSet<String> left = new TreeSet<>();
        for (JobRow job : jobs) {
            cleared += tables.update(connection, clear, job.id(), job.owner());
            if (job.instance() != null) {
                left.add(job.instance());
            }
        }
        Map<String, Instances.Execution> held =
                new LinkedHashMap<>(instances.hold(connection, left));
        instances.clearLeft(connection, held);
        return cleared;
    }
}
