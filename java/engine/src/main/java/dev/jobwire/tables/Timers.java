package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Timers: which are due, and which may become executable now. */
public final class Timers {
    /** How soon timers are tried again whose instance is locked. */
    private static final long HELD_MILLIS = 500;

    /** Makes a timer executable in a transaction of the engine. Returns false if it waits. */
    public interface Mover {
        /** Moves a timer. */
        boolean move(String timer);
    }

    /**
     * The result of a move.
     *
     * @param nextDue when timers are due next; null without one
     */
    public record Moved(List<JobRow> ready, Instant nextDue, Instant now) {}

    private final EngineTables tables;

    /** Reads these tables. */
    public Timers(EngineTables tables) {
        this.tables = tables;
    }

    /** Moves timers that are due, at most this number. */
    public Moved move(int atMost, Mover mover) {
        Columns has = tables.columns();
        String timers = tables.table(JobTable.TIMER.table());
        String sql = "SELECT " + JobTable.TIMER.columns(has) + " FROM " + timers
                + " WHERE DUEDATE_ <= ? AND LOCK_EXP_TIME_ IS NULL AND LOCK_OWNER_ IS NULL AND "
                + has.ofProcesses("") + " ORDER BY DUEDATE_, ID_";
        List<JobRow> due = tables.transaction(connection -> tables.query(
                connection, sql, List.of(tables.now(connection)), atMost,
                row -> JobRow.of(JobTable.TIMER, row)));
        List<JobRow> ready = new ArrayList<>();
        for (JobRow timer : due) {
            if (mover.move(timer.id())) {
                ready.add(timer);
            }
        }
        return tables.transaction(connection -> {
            Instant now = tables.now(connection);
            Instant next = nextDue(connection, now);
            if (due.size() >= atMost && !ready.isEmpty()) {
                next = now;
            } else if (ready.size() < due.size()) {
                Instant again = now.plusMillis(HELD_MILLIS);
                next = next == null || again.isBefore(next) ? again : next;
            }
            return new Moved(ready, next, now);
        });
    }

    /** Returns the first due date behind a moment; null without one. */
    Instant nextDue(Connection connection, Instant after) throws SQLException {
        String behind = after == null ? "" : " AND DUEDATE_ > ?";
        String sql = "SELECT MIN(DUEDATE_) FROM " + tables.table(JobTable.TIMER.table())
                + " WHERE LOCK_EXP_TIME_ IS NULL AND LOCK_OWNER_ IS NULL AND "
                + tables.columns().ofProcesses("") + behind;
        List<Object> parameters = after == null ? List.of() : List.of(after);
        List<Instant> next = new ArrayList<>();
        tables.query(connection, sql, parameters, 1, row -> {
            Timestamp due = row.getTimestamp(1);
            return due != null && next.add(due.toInstant());
        });
        return next.isEmpty() ? null : next.get(0);
    }

    /**
     * Returns whether a timer that is due may become executable in this transaction of the engine:
     * its instance is free, and its row stays locked until the transaction ends. The move changes
     * numbers on the row of an execution, so a job of the instance that runs would conflict with it.
     */
    public boolean mayMove(Connection connection, String instance, Instant due) {
        try {
            if (due == null || due.isAfter(tables.now(connection))) {
                return false;
            }
            if (instance == null) {
                return true;
            }
            Instances instances = new Instances(tables);
            Map<String, Instances.Execution> held = instances.hold(connection, Set.of(instance));
            Instances.Execution execution = held.get(instance);
            return execution != null
                    && !execution.isLocked()
                    && instances.withLockedJob(connection, held.keySet()).isEmpty();
        } catch (SQLException failed) {
            throw new TablesException(failed);
        }
    }
}
