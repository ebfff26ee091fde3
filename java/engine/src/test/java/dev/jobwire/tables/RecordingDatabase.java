package dev.jobwire.tables;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;
import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import javax.sql.DataSource;

/**
 * A database that records statements and runs none. A query finds one row, with {@link #ID} in each
 * text. Its dates have passed. An update changes one row.
 */
final class RecordingDatabase {
    /** The text of each column: a job, its instance, an owner. */
    static final String ID = "jobwire:0198c0de-7777-7000-8000-000000000001:1";
    /** The time of the database. */
    static final Instant NOW = Instant.parse("2026-11-27T12:00:00Z");

    /** The statements so far. */
    final List<String> statements = new ArrayList<>();
    /** The times among the parameters so far. */
    final List<Instant> times = new ArrayList<>();
    boolean isJobLocked;
    boolean isInstanceLocked;
    boolean isCommitBroken;
    int retries = 1;
    /** 2 while jobs and instances are suspended. */
    int suspension = 1;
    private boolean wasNull;

    /** Returns its tables, of an engine with these columns. */
    EngineTables tables(Columns columns) {
        return new EngineTables(source(), "", columns);
    }

    private DataSource source() {
        return answering(DataSource.class, (self, called, how) -> connection());
    }

    private Connection connection() {
        return answering(Connection.class, (self, called, how) -> switch (called.getName()) {
            case "getMetaData" -> answering(
                    DatabaseMetaData.class, (about, name, nothing) -> "MariaDB");
            case "getAutoCommit" -> true;
            case "getTransactionIsolation" -> Connection.TRANSACTION_READ_COMMITTED;
            case "prepareStatement" -> statement((String) how[0]);
            case "commit" -> {
                if (isCommitBroken) {
                    throw new SQLException("the connection is closed");
                }
                yield null;
            }
            default -> null;
        });
    }

    private PreparedStatement statement(String sql) {
        statements.add(sql);
        return answering(PreparedStatement.class, (self, called, how) -> switch (called.getName()) {
            case "executeQuery" -> row(sql);
            case "executeUpdate" -> 1;
            case "setTimestamp" -> {
                times.add(((Timestamp) how[1]).toInstant());
                yield null;
            }
            default -> null;
        });
    }

    private ResultSet row(String sql) {
        // The instances with a locked job.
        boolean isEmpty = sql.startsWith("SELECT DISTINCT PROCESS_INSTANCE_ID_") && !isJobLocked;
        boolean[] isRead = {isEmpty};
        return answering(ResultSet.class, (self, called, how) -> {
            switch (called.getName()) {
                case "next" -> {
                    boolean isFirst = !isRead[0];
                    isRead[0] = true;
                    return isFirst;
                }
                case "wasNull" -> {
                    return wasNull;
                }
                case "getBigDecimal" -> {
                    return BigDecimal.valueOf(NOW.getEpochSecond());
                }
                case "close" -> {
                    return null;
                }
                default -> {
                }
            }
            boolean isLocked = sql.contains("FROM ACT_RU_EXECUTION") ? isInstanceLocked : isJobLocked;
            boolean isLock = how[0] instanceof String column && column.startsWith("LOCK_");
            wasNull = sql.contains("NULL AS " + how[0]) || (isLock && !isLocked);
            return switch (called.getName()) {
                case "getInt" -> wasNull ? 0 : number(how[0]);
                case "getTimestamp" -> wasNull ? null : Timestamp.from(NOW.minusSeconds(3_600));
                default -> wasNull ? null : ID;
            };
        });
    }

    private int number(Object column) {
        if (column.equals("RETRIES_")) {
            return retries;
        }
        return column.equals("SUSPENSION_STATE_") ? suspension : 1;
    }

    private static <T> T answering(Class<T> type, InvocationHandler answer) {
        return type.cast(Proxy.newProxyInstance(
                RecordingDatabase.class.getClassLoader(), new Class<?>[] {type}, answer));
    }
}
