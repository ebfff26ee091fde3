package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The due timers, and their moves to the executable jobs. */
public final class Timers {
    private static final Logger LOG = LoggerFactory.getLogger(Timers.class);
    /** The pause before due timers that wait are tried again. */
    private static final long HELD_MILLIS = 500;
    /** The pause before a timer whose move failed is tried again, in nanoseconds. */
    private static final long PATIENCE = TimeUnit.MINUTES.toNanos(1);
    private static final int MOST_FAILED = 1_000;
    /** The number of failures in a row that end a move: the database may be away. */
    private static final int MOST_IN_A_ROW = 10;

    /**
     * The time after which a move answers what it has moved, in nanoseconds. The caller waits 15 s
     * for the answer, and asks for the rest.
     */
    private static final long LONGEST_MOVE = TimeUnit.SECONDS.toNanos(4);

    /** Makes a timer executable in a transaction of the engine. Returns false if it waits. */
    public interface Mover {
        /** Moves a timer. */
        boolean move(String timer);
    }

    /**
     * The result of a move.
     *
     * @param nextDue the next due date of a timer; null if there is none
     */
    public record Moved(List<JobRow> ready, Instant nextDue, Instant now) {}

    private final EngineTables tables;
    /**
     * Timers whose moves failed, with the times of the failures. They delay no timer behind them.
     */
    private final Map<String, Long> failed = new ConcurrentHashMap<>();

    /** Reads these tables. */
    public Timers(EngineTables tables) {
        this.tables = tables;
    }

    /**
     * Moves timers that are due and whose instances are free, at most this number. Ends earlier
     * when the moves have taken a few seconds.
     */
    public Moved move(int atMost, Mover mover) {
        failed.values().removeIf(at -> System.nanoTime() - at > PATIENCE);
        List<JobRow> due = due(atMost + failed.size()).stream()
                .filter(timer -> !failed.containsKey(timer.id()))
                .limit(atMost)
                .toList();
        List<JobRow> ready = new ArrayList<>();
        int failures = 0;
        long began = System.nanoTime();
        boolean isCut = false;
        for (JobRow timer : due) {
            isCut = System.nanoTime() - began >= LONGEST_MOVE;
            if (isCut || failures >= MOST_IN_A_ROW) {
                break;
            }
            try {
                if (mover.move(timer.id())) {
                    ready.add(timer);
                }
                failures = 0;
            } catch (RuntimeException broken) {
                failures++;
                LOG.warn("the timer {} could not be made executable", timer.id(), broken);
                if (failed.size() < MOST_FAILED) {
                    failed.put(timer.id(), System.nanoTime());
                }
            }
        }
        boolean isLeft = isCut || due.size() >= atMost;
        return tables.transaction(connection -> {
            Instant now = tables.now(connection);
            Instant next = nextDue(connection);
            if (next != null && !next.isAfter(now)) {
                // Some timers are left: more than could be moved at once, or only timers that wait.
                boolean isMore = isLeft && !ready.isEmpty();
                next = isMore ? now : now.plusMillis(HELD_MILLIS);
            }
            return new Moved(ready, next, now);
        });
    }

    private List<JobRow> due(int limit) {
        Columns has = tables.columns();
        String sql = "SELECT " + JobTable.TIMER.columns(has) + " FROM " + timers()
                + " t WHERE t.DUEDATE_ <= ? AND t.LOCK_EXP_TIME_ IS NULL"
                + " AND " + has.ofProcesses("t.") + " AND " + new Instances(tables).free("t") + " ORDER BY t.DUEDATE_, t.ID_";
        return tables.transaction(connection -> tables.query(
                connection, sql, List.of(tables.now(connection)), limit,
                row -> JobRow.of(JobTable.TIMER, row)));
    }

    private String timers() {
        return tables.table(JobTable.TIMER);
    }

    /** Returns the first due date of all timers, which may have passed; null without one. */
    Instant nextDue(Connection connection) throws SQLException {
        List<Object> parameters = new ArrayList<>();
        String sql = "SELECT MIN(DUEDATE_) FROM " + timers()
                + " WHERE LOCK_EXP_TIME_ IS NULL AND "
                + JobTable.TIMER.condition(
                        tables.columns(), "", tables.now(connection), parameters);
        List<Instant> next = new ArrayList<>();
        tables.query(connection, sql, parameters, 1, row -> {
            Timestamp due = row.getTimestamp(1);
            return due != null && next.add(due.toInstant());
        });
        return next.isEmpty() ? null : next.get(0);
    }

    /**
     * Returns whether a due timer may become executable in this transaction of the engine. Its
     * instance is free, and the rows of both stay locked until the transaction ends. The move
     * changes counts on the row of an execution, so it would conflict with a running job of the
     * instance. Waits for no row.
     */
    public boolean mayMove(Connection connection, String timer, String instance, Instant due) {
        try {
            if (due == null || due.isAfter(tables.now(connection))) {
                return false;
            }
            if (instance != null) {
                Instances instances = new Instances(tables);
                Map<String, Instances.Execution> held =
                        instances.hold(connection, Set.of(instance));
                Instances.Execution execution = held.get(instance);
                if (execution == null
                        || execution.isLocked()
                        || !instances.withLockedJob(connection, held.keySet()).isEmpty()) {
                    return false;
                }
            }
            return !tables.hold(connection, JobTable.TIMER, List.of(timer)).isEmpty();
        } catch (SQLException failed) {
            throw new TablesException(failed);
        }
    }
}
