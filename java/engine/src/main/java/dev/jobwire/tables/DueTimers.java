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
 * reported when it becomes due, and for a second more while it is not locked. The answer of a report
 * may be lost, so the next report repeats it, without the timers that were locked meanwhile. The
 * sweeper finds the others.
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

    /**
     * The ends of the last two reports.
     *
     * @param before the end of the last report but one: the next report begins there
     */
    private record Ends(Reached before, Reached last) {}

    /** A report, and the ends that are known after its commit. */
    private record Report(Timers.Moved moved, Ends ends) {}

    private final EngineTables tables;
    private volatile Ends ends;

    /** Reads these tables. */
    public DueTimers(EngineTables tables) {
        this.tables = tables;
    }

    /** Reports timers that became due, at most this number in the order of their due dates. */
    public Timers.Moved report(int atMost) {
        Report report = tables.transaction(connection -> report(connection, atMost));
        ends = report.ends;
        return report.moved;
    }

    private Report report(Connection connection, int atMost) throws SQLException {
        Instant now = tables.now(connection);
        Ends known = ends;
        if (known == null || known.last.due.isAfter(now)) {
            // This is the first report, or the clock was set back.
            Reached first = new Reached(now.minus(FIRST), BEFORE_ALL);
            known = new Ends(first, first);
        }
        List<JobRow> due = due(connection, now, known.before, atMost);
        if (due.size() < atMost) {
            Reached end = new Reached(now.minus(AGAIN), BEFORE_ALL);
            return new Report(
                    new Timers.Moved(due, new Timers(tables).nextDue(connection), now),
                    new Ends(known.last, end));
        }
        JobRow last = due.get(due.size() - 1);
        // The others follow at once.
        return new Report(
                new Timers.Moved(due, now, now),
                new Ends(known.last, new Reached(last.due(), last.id())));
    }

    private List<JobRow> due(Connection connection, Instant now, Reached after, int limit)
            throws SQLException {
        Columns has = tables.columns();
        List<Object> parameters = new ArrayList<>();
        String sql = "SELECT " + JobTable.JOB.columns(has) + " FROM " + tables.jobs()
                + " WHERE LOCK_EXP_TIME_ IS NULL AND "
                + JobTable.JOB.condition(has, "", now, parameters)
                + " AND (DUEDATE_ > ? OR (DUEDATE_ = ? AND ID_ > ?)) ORDER BY DUEDATE_, ID_";
        parameters.addAll(List.of(after.due, after.due, after.id));
        return tables.query(
                connection, sql, parameters, limit, tables.reader(connection, JobTable.JOB));
    }
}
