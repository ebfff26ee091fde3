package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.SQLException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The findings of a probe in the tables. Changes nothing. */
public final class Health {
    private static final int LOOKED_AT = 1_000;

    private final EngineTables tables;

    /** Reads these tables. */
    public Health(EngineTables tables) {
        this.tables = tables;
    }

    /** Returns the database's clock. */
    public Instant now() {
        return tables.transaction(tables::now);
    }

    /** Returns the fields of a probe about the database and the jobs. */
    public Map<String, Object> fields() {
        return tables.transaction(connection -> {
            Map<String, Object> fields = new LinkedHashMap<>();
            DatabaseMetaData about = connection.getMetaData();
            fields.put("database", about.getDatabaseProductName() + " "
                    + about.getDatabaseProductVersion());
            Instant now = tables.now(connection);
            fields.put("now", now.toEpochMilli());
            fields.put("clock_ahead", System.currentTimeMillis() - now.toEpochMilli());
            fields.put("ids", ids(connection));
            fields.put("other_scopes", otherScopes(connection));
            fields.put("handlers", handlers(connection));
            fields.put("polls", polls(connection));
            locksRows(connection);
            return fields;
        });
    }

    /** Fails if rows can't be locked without a wait. */
    private void locksRows(Connection connection) throws SQLException {
        String sql = tables.locking("ID_", tables.executions(), "ID_ = ?");
        tables.query(connection, sql, List.of("jobwire"), 1, row -> true);
    }

    /** Returns one id of each table. */
    private List<String> ids(Connection connection) throws SQLException {
        List<String> ids = new ArrayList<>();
        for (JobTable table : JobTable.all(tables.columns())) {
            ids.addAll(tables.query(
                    connection, "SELECT ID_ FROM " + tables.table(table), List.of(), 20,
                    row -> row.getString(1)));
        }
        return ids;
    }

    /** Counts jobs of other scopes than processes. */
    private int otherScopes(Connection connection) throws SQLException {
        int others = 0;
        for (JobTable table : List.of(JobTable.JOB, JobTable.TIMER)) {
            String sql = "SELECT ID_ FROM " + tables.table(table) + " WHERE NOT "
                    + tables.columns().ofProcesses("");
            others += tables.query(connection, sql, List.of(), LOOKED_AT, row -> true).size();
        }
        return others;
    }

    private List<String> handlers(Connection connection) throws SQLException {
        String sql = "SELECT DISTINCT HANDLER_TYPE_ FROM " + tables.jobs()
                + " WHERE HANDLER_TYPE_ IS NOT NULL";
        return tables.query(connection, sql, List.of(), 100, row -> row.getString(1));
    }

    /** Returns whether a node of the engine executes jobs by itself. */
    private boolean polls(Connection connection) throws SQLException {
        String sql = "SELECT ID_ FROM " + tables.jobs()
                + " WHERE LOCK_OWNER_ IS NOT NULL AND LOCK_OWNER_ NOT LIKE 'jobwire:%'";
        return !tables.query(connection, sql, List.of(), 1, row -> true).isEmpty();
    }
}
