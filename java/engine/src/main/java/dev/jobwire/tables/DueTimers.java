package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/**
 * The timers that become due in their rows, in the one table of all jobs. No column shows that a
 * timer was reported. So this object remembers up to which due date it has reported. A timer is
 * reported when it becomes due, and for a second more while it is not locked. The sweeper finds the
 * others.
 */
public final class DueTimers {
    /** The age of the timers of the first report. */
    private static final Duration FIRST = Duration.ofMinutes(5);
    /**
     * The time for which a report repeats the last one: columns have whole seconds in MySQL, and a
     * timer may be committed just after its due date.
     */
    private static final Duration AGAIN = Duration.ofSeconds(1);
    /** Each id is greater than a space; an empty text is NULL in Oracle. */
    private static final String BEFORE_ALL = " ";

    /** The last timer of a report. */
    private record Reached(Instant due, String id) {}

    private final EngineTables tables;
    private volatile Reached reached;

    /** Reads these tables. */
    public DueTimers(EngineTables tables) {
        this.tables = tables;
    }

    /** Reports timers that became due, at most this number in the order of their due dates. */
    public Timers.Moved report(int atMost) {
        return tables.transaction(connection -> {
            Instant now = tables.now(connection);
            List<JobRow> due = due(connection, now, atMost);
            if (due.size() < atMost) {
                reached = new Reached(now.minus(AGAIN), BEFORE_ALL);
                return new Timers.Moved(due, new Timers(tables).nextDue(connection), now);
            }
            JobRow last = due.get(due.size() - 1);
            reached = new Reached(last.due(), last.id());
            // The others follow at once.
            return new Timers.Moved(due, now, now);
        });
    }

    private List<JobRow> due(Connection connection, Instant now, int limit) throws SQLException {
        Reached after = reached;
        if (after == null || after.due.isAfter(now)) {
            // This is the first report, or the clock was set back.
            after = new Reached(now.minus(FIRST), BEFORE_ALL);
        }
        Columns has = tables.columns();
        List<Object> parameters = new ArrayList<>();
        String sql = "SELECT " + JobTable.JOB.columns(has) + " FROM " + tables.jobs()
                + " WHERE LOCK_EXP_TIME_ IS NULL AND LOCK_OWNER_ IS NULL AND "
                + JobTable.JOB.condition(has, "", now, parameters)
                + " AND (DUEDATE_ > ? OR (DUEDATE_ = ? AND ID_ > ?)) ORDER BY DUEDATE_, ID_";
        parameters.addAll(List.of(after.due, after.due, after.id));
        return tables.query(
                connection, sql, parameters, limit, tables.reader(connection, JobTable.JOB));
    }
}
