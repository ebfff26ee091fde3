package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.UUID;
import org.h2.jdbcx.JdbcDataSource;

/** The tables of Flowable in a database of this process, with the columns that Jobwire uses. */
final class FlowableTables implements AutoCloseable {
    private static final String JOB = " (ID_ VARCHAR(64) PRIMARY KEY, REV_ INTEGER,"
            + " CATEGORY_ VARCHAR(255), TYPE_ VARCHAR(255), LOCK_EXP_TIME_ TIMESTAMP,"
            + " LOCK_OWNER_ VARCHAR(255), EXCLUSIVE_ BOOLEAN, EXECUTION_ID_ VARCHAR(64),"
            + " PROCESS_INSTANCE_ID_ VARCHAR(64), PROC_DEF_ID_ VARCHAR(64),"
            + " ELEMENT_ID_ VARCHAR(255), SCOPE_TYPE_ VARCHAR(255), RETRIES_ INTEGER,"
            + " EXCEPTION_MSG_ VARCHAR(4000), DUEDATE_ TIMESTAMP, HANDLER_TYPE_ VARCHAR(255),"
            + " CREATE_TIME_ TIMESTAMP, TENANT_ID_ VARCHAR(255) DEFAULT '')";

    private final Connection connection;
    private final EngineTables tables;

    FlowableTables() throws SQLException {
        JdbcDataSource source = new JdbcDataSource();
        // The database lives as long as its first connection.
        source.setURL("jdbc:h2:mem:" + UUID.randomUUID());
        connection = source.getConnection();
        for (JobTable table : JobTable.values()) {
            change("CREATE TABLE " + table.table(Columns.ofFlowable()) + JOB);
        }
        change("CREATE TABLE ACT_RU_EXTERNAL_JOB" + JOB);
        change("CREATE TABLE ACT_RU_EXECUTION (ID_ VARCHAR(64) PRIMARY KEY,"
                + " LOCK_TIME_ TIMESTAMP, LOCK_OWNER_ VARCHAR(255), SUSPENSION_STATE_ INTEGER)");
        change("CREATE TABLE ACT_GE_PROPERTY (NAME_ VARCHAR(64) PRIMARY KEY,"
                + " VALUE_ VARCHAR(300), REV_ INTEGER)");
        tables = new EngineTables(source, "", Columns.ofFlowable());
    }

    EngineTables tables() {
        return tables;
    }

    /** Runs a statement and returns the number of its rows. */
    int change(String sql, Object... parameters) throws SQLException {
        try (PreparedStatement statement = prepared(sql, parameters)) {
            return statement.executeUpdate();
        }
    }

    /** Returns the number that a query selects. */
    long number(String sql, Object... parameters) throws SQLException {
        try (PreparedStatement query = prepared(sql, parameters);
                ResultSet row = query.executeQuery()) {
            row.next();
            return row.getLong(1);
        }
    }

    private PreparedStatement prepared(String sql, Object... parameters) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(sql);
        for (int at = 0; at < parameters.length; at++) {
            boolean isTime = parameters[at] instanceof Instant;
            statement.setObject(
                    at + 1,
                    isTime ? Timestamp.from((Instant) parameters[at]) : parameters[at]);
        }
        return statement;
    }

    void instance(String id) throws SQLException {
        change("INSERT INTO ACT_RU_EXECUTION (ID_, SUSPENSION_STATE_) VALUES (?, 1)", id);
    }

    /** Creates a job of an instance. Jobs are as old as the order of their ids. */
    void job(String instance, String id, String category, String tenant) throws SQLException {
        change("INSERT INTO ACT_RU_JOB (ID_, REV_, CATEGORY_, TYPE_, PROCESS_INSTANCE_ID_,"
                        + " EXECUTION_ID_, RETRIES_, HANDLER_TYPE_, CREATE_TIME_, TENANT_ID_)"
                        + " VALUES (?, 1, ?, 'message', ?, ?, 3, 'async-continuation', ?, ?)",
                id, category, instance, instance, Instant.EPOCH, tenant);
    }

    @Override
    public void close() throws SQLException {
        connection.close();
    }
}
