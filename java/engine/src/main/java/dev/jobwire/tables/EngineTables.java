package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Date;
import java.util.List;
import javax.sql.DataSource;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The tables of one engine: transactions on them, and the common parts of statements. */
public final class EngineTables {
    private static final Logger LOG = LoggerFactory.getLogger(EngineTables.class);
    /** The beginning of the owner of a lock of Jobwire, which no engine writes. */
    static final String OURS = "jobwire:";
    /** Seconds after which the driver ends a statement. */
    private static final int STATEMENT_SECONDS = 10;
    /** Maximum number of parameters of one kind in a statement. */
    private static final int PART = 200;

    /** Work in a transaction. */
    interface Work<T> {
        T in(Connection connection) throws SQLException;
    }

    /** Reads a row. */
    interface Reader<T> {
        T of(ResultSet row) throws SQLException;
    }

    private final DataSource source;
    private final String prefix;
    private final Columns columns;
    private final Database database;
    private final DatabaseClock clock;

    /**
     * Connects to the tables.
     *
     * @param prefix the prefix of the name of each table, or nothing
     */
    public EngineTables(DataSource source, String prefix, Columns columns) {
        this.source = source;
        this.prefix = prefix == null ? "" : prefix;
        this.columns = columns;
        try (Connection connection = source.getConnection()) {
            this.database = Database.of(connection);
        } catch (SQLException failed) {
            throw new TablesException(failed);
        }
        this.clock = new DatabaseClock(database);
    }

    /** Returns the columns that only some engines have. */
    public Columns columns() {
        return columns;
    }

    /**
     * Works in a transaction of its own, with READ COMMITTED: a row that was locked before the read
     * shows its newest version.
     */
    <T> T transaction(Work<T> work) {
        try (Session session = open()) {
            return session.transaction(work);
        }
    }

    /** Takes a connection of the pool. */
    Session open() {
        try {
            return new Session(source.getConnection());
        } catch (SQLException failed) {
            throw new TablesException(failed);
        }
    }

    /** A connection for transactions. It is returned to the pool in its former state. */
    static final class Session implements AutoCloseable {
        private final Connection connection;
        private final boolean commitsEach;
        private final int isolation;

        private Session(Connection connection) throws SQLException {
            this.connection = connection;
            boolean isReady = false;
            try {
                commitsEach = connection.getAutoCommit();
                isolation = connection.getTransactionIsolation();
                if (isolation != Connection.TRANSACTION_READ_COMMITTED) {
                    connection.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
                }
                connection.setAutoCommit(false);
                isReady = true;
            } finally {
                if (!isReady) {
                    connection.close();
                }
            }
        }

        <T> T transaction(Work<T> work) {
            boolean isDone = false;
            try {
                try {
                    T result = work.in(connection);
                    connection.commit();
                    isDone = true;
                    return result;
                } finally {
                    if (!isDone) {
                        connection.rollback();
                    }
                }
            } catch (SQLException failed) {
                throw new TablesException(failed);
            }
        }

        @Override
        public void close() {
            try (Connection closed = connection) {
                closed.setAutoCommit(commitsEach);
                if (isolation != Connection.TRANSACTION_READ_COMMITTED) {
                    closed.setTransactionIsolation(isolation);
                }
            } catch (SQLException failed) {
                // Committed changes stay, and a pool closes a broken connection.
                LOG.debug("a connection could not be returned to the pool", failed);
            }
        }
    }

    Instant now(Connection connection) throws SQLException {
        return clock.now(connection);
    }

    /**
     * Returns whether a due date has passed by the database's clock, like the condition of a lock.
     * The connection is that of a transaction of the engine.
     *
     * @param due null without a due date: the job is due
     */
    public boolean isDue(Connection connection, Date due) {
        try {
            return due == null || !due.toInstant().isAfter(now(connection));
        } catch (SQLException failed) {
            throw new TablesException(failed);
        }
    }

    /**
     * Returns the end of a lock. Camunda's columns have whole seconds in MySQL: such a lock ends up to
     * a second later, not earlier.
     */
    Instant lockEnd(Instant begin, long leaseMillis) {
        Instant end = begin.plusMillis(leaseMillis);
        return columns.oneTable() ? end.plusMillis(999).truncatedTo(ChronoUnit.SECONDS) : end;
    }

    /** Returns the name of a table. */
    String table(String name) {
        return prefix + name;
    }

    /** Returns the name of the table that has such jobs. */
    String table(JobTable of) {
        return table(of.table(columns));
    }

    String jobs() {
        return table(JobTable.JOB);
    }

    String executions() {
        return table("ACT_RU_EXECUTION");
    }

    /** Returns a statement that locks the rows of a table that no other transaction has locked. */
    String locking(String columns, String table, String condition) {
        return "SELECT " + columns + " FROM " + table + database.hint() + " WHERE " + condition
                + " ORDER BY ID_" + database.suffix();
    }

    /** Returns the places of this number of parameters. */
    static String places(int count) {
        return "(" + "?, ".repeat(Math.max(count, 1) - 1) + "?)";
    }

    /** Runs a query; a limit of 0 means all rows. */
    <T> List<T> query(
            Connection connection, String sql, List<?> parameters, int limit, Reader<T> reader)
            throws SQLException {
        try (PreparedStatement query = connection.prepareStatement(sql)) {
            query.setQueryTimeout(STATEMENT_SECONDS);
            query.setMaxRows(limit);
            bind(query, parameters);
            List<T> found = new ArrayList<>();
            try (ResultSet rows = query.executeQuery()) {
                while (rows.next()) {
                    found.add(reader.of(rows));
                }
            }
            return found;
        }
    }

    /** Runs a statement and returns the number of its rows. */
    int update(Connection connection, String sql, Object... parameters) throws SQLException {
        try (PreparedStatement update = connection.prepareStatement(sql)) {
            update.setQueryTimeout(STATEMENT_SECONDS);
            bind(update, List.of(parameters));
            return update.executeUpdate();
        }
    }

    private static void bind(PreparedStatement statement, List<?> parameters) throws SQLException {
        for (int at = 0; at < parameters.size(); at++) {
            Object value = parameters.get(at);
            if (value instanceof Instant time) {
                // The time is in the zone of this Java virtual machine, as the engine writes it.
                statement.setTimestamp(at + 1, Timestamp.from(time));
            } else {
                statement.setObject(at + 1, value);
            }
        }
    }

    /** Statements take a bounded number of parameters. */
    static <T> List<List<T>> parts(List<T> all) {
        List<List<T>> parts = new ArrayList<>();
        for (int at = 0; at < all.size(); at += PART) {
            parts.add(all.subList(at, Math.min(at + PART, all.size())));
        }
        return parts;
    }

    /** Locks rows until the transaction ends. Skips rows that other transactions have locked. */
    List<String> hold(Connection connection, JobTable table, Collection<String> ids)
            throws SQLException {
        List<String> held = new ArrayList<>();
        for (List<String> part : parts(ids.stream().sorted().toList())) {
            String sql = locking("ID_", table(table), "ID_ IN " + places(part.size()));
            held.addAll(query(connection, sql, part, 0, row -> row.getString("ID_")));
        }
        return held;
    }

    /** Returns the jobs of these ids in a table. One table for all jobs has jobs of each state. */
    List<JobRow> byId(Connection connection, JobTable table, Collection<String> ids)
            throws SQLException {
        if (ids.isEmpty()) {
            return List.of();
        }
        String sql = "SELECT " + table.columns(columns) + " FROM " + table(table)
                + " WHERE ID_ IN " + places(ids.size()) + " ORDER BY ID_";
        return query(connection, sql, List.copyOf(ids), 0, reader(connection, table));
    }

    /** Returns the reader of jobs of a table, with the columns of {@link JobTable#columns}. */
    Reader<JobRow> reader(Connection connection, JobTable table) throws SQLException {
        if (!columns.oneTable()) {
            return row -> JobRow.of(table, row);
        }
        Instant now = now(connection);
        return row -> JobRow.of(
                JobTable.of(
                        row.getInt("RETRIES_"),
                        row.getInt("SUSPENSION_STATE_"),
                        JobRow.time(row, "DUEDATE_"),
                        now),
                row);
    }
}
