package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Clears the locks of dead holders. The lock of a node of Jobwire is cleared when it has expired.
 * The lock of an engine node is cleared a minute later, since the engine's own reset comes first.
 * An execution that continues in an engine extends the lock of its job, so its lock does not
 * expire.
 */
public final class Rescue {
    private static final Logger LOG = LoggerFactory.getLogger(Rescue.class);
    private static final Duration ENGINE = Duration.ofMinutes(1);
    private static final int MOST = 1_000;

    /**
     * The cleared locks.
     *
     * @param jobs the jobs, with the owners of their locks
     * @param timers the number of timers
     * @param ready the first job of each category of the instances that were locked without a locked
     *     job
     */
    public record Rescued(List<JobRow> jobs, int timers, List<JobRow> ready) {}

    private final EngineTables tables;
    private final Instances instances;

    /** Rescues jobs in these tables. */
    public Rescue(EngineTables tables) {
        this.tables = tables;
        this.instances = new Instances(tables);
    }

    /**
     * Clears expired locks, at most this number of each kind. A kind that fails is logged, and the
     * others continue.
     *
     * @throws TablesException if all of them fail
     */
    public Rescued rescue(int atMost) {
        int most = Math.min(atMost, MOST);
        if (tables.columns().oneTable()) {
            // Timers and instances have no locks of their own.
            return new Rescued(
                    tables.transaction(connection -> jobs(connection, most)), 0, List.of());
        }
        List<TablesException> failures = new ArrayList<>();
        Rescued rescued = new Rescued(
                part(failures, List.of(), connection -> jobs(connection, most)),
                part(failures, 0, connection -> timers(connection, most)),
                part(failures, List.of(), connection -> instances(connection, most)));
        if (failures.size() == 3) {
            throw failures.get(0);
        }
        failures.forEach(failed -> LOG.warn("a part of the rescue failed", failed));
        return rescued;
    }

    private <T> T part(List<TablesException> failures, T nothing, EngineTables.Work<T> work) {
        try {
            return tables.transaction(work);
        } catch (TablesException failed) {
            failures.add(failed);
            return nothing;
        }
    }

    private List<JobRow> jobs(Connection connection, int most) throws SQLException {
        Instant now = tables.now(connection);
        String sql = "SELECT " + JobTable.JOB.columns(tables.columns()) + " FROM " + tables.jobs()
                + " WHERE (LOCK_EXP_TIME_ < ? AND LOCK_OWNER_ LIKE 'jobwire:%')"
                + " OR LOCK_EXP_TIME_ < ? ORDER BY LOCK_EXP_TIME_, ID_";
        List<JobRow> late = tables.query(
                connection, sql, List.of(now, now.minus(ENGINE)), most,
                tables.reader(connection, JobTable.JOB));
        Set<String> ofLate = new LinkedHashSet<>();
        late.forEach(job -> ofLate.add(job.instance()));
        ofLate.remove(null);
        Map<String, Instances.Execution> held = new LinkedHashMap<>();
        for (List<String> part : EngineTables.parts(List.copyOf(new TreeSet<>(ofLate)))) {
            held.putAll(instances.hold(connection, part));
        }
        Set<String> free = new HashSet<>(tables.hold(
                connection, JobTable.JOB, late.stream().map(JobRow::id).toList()));
        String clear = "UPDATE " + tables.jobs() + " SET LOCK_OWNER_ = NULL, LOCK_EXP_TIME_ = NULL"
                + " WHERE ID_ = ? AND REV_ = ? AND LOCK_EXP_TIME_ < ?";
        List<JobRow> freed = new ArrayList<>();
        for (JobRow job : late) {
            boolean isHeld = job.instance() == null || held.containsKey(job.instance());
            if (isHeld && free.contains(job.id())
                    && tables.update(connection, clear, job.id(), job.revision(), now) == 1) {
                freed.add(job);
            }
        }
        held.keySet().retainAll(freed.stream().map(JobRow::instance).toList());
        clearLeft(connection, held);
        return freed;
    }

    private int timers(Connection connection, int most) throws SQLException {
        String timers = tables.table(JobTable.TIMER);
        Instant late = tables.now(connection).minus(ENGINE);
        List<String> ids = tables.query(
                connection, "SELECT ID_ FROM " + timers + " WHERE LOCK_EXP_TIME_ < ? ORDER BY ID_",
                List.of(late), most, row -> row.getString("ID_"));
        String clear = "UPDATE " + timers + " SET LOCK_OWNER_ = NULL, LOCK_EXP_TIME_ = NULL"
                + " WHERE ID_ = ? AND LOCK_EXP_TIME_ < ?";
        int cleared = 0;
        for (String id : tables.hold(connection, JobTable.TIMER, ids)) {
            cleared += tables.update(connection, clear, id, late);
        }
        return cleared;
    }

    /**
     * The engine died after it had locked an instance of which a job or a timer waits. An owner
     * without a time holds the instance, too, and nothing else would end that lock.
     */
    private List<JobRow> instances(Connection connection, int most) throws SQLException {
        String late = tables.columns().instanceOwner()
                ? "(e.LOCK_TIME_ < ? OR (e.LOCK_TIME_ IS NULL AND e.LOCK_OWNER_ IS NOT NULL))"
                : "e.LOCK_TIME_ < ?";
        String sql = "SELECT e.ID_ FROM " + tables.executions() + " e WHERE " + late
                + " AND (EXISTS" + jobsOf(JobTable.JOB) + "NULL) OR EXISTS"
                + jobsOf(JobTable.TIMER) + "NULL)) AND NOT EXISTS" + jobsOf(JobTable.JOB)
                + "NOT NULL) ORDER BY e.ID_";
        List<String> left = tables.query(
                connection, sql, List.of(tables.now(connection)), most, row -> row.getString(1));
        List<JobRow> ready = new ArrayList<>();
        for (List<String> part : EngineTables.parts(left)) {
            Map<String, Instances.Execution> held = instances.hold(connection, part);
            Set<String> cleared = instances.clearLeft(connection, held);
            ready.addAll(instances.firstsOfEachCategory(connection, cleared));
        }
        return ready;
    }

    private String jobsOf(JobTable table) {
        return " (SELECT j.ID_ FROM " + tables.table(table)
                + " j WHERE j.PROCESS_INSTANCE_ID_ = e.ID_ AND j.LOCK_EXP_TIME_ IS ";
    }

    private void clearLeft(Connection connection, Map<String, Instances.Execution> held)
            throws SQLException {
        for (List<String> part : EngineTables.parts(List.copyOf(held.keySet()))) {
            Map<String, Instances.Execution> some = new LinkedHashMap<>(held);
            some.keySet().retainAll(part);
            instances.clearLeft(connection, some);
        }
    }
}
