package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/** Locks jobs, extends their locks, and finds locks whose answer was lost. */
public final class Locks {
    /** The beginning of the owner of a lock of a node, which no engine writes. */
    public static final String OURS = EngineTables.OURS;
    /** Maximum number of locks of a node that are returned at once. */
    private static final int MOST = 1_000;

    /**
     * A hint.
     *
     * @param instance the instance that it names; null for none
     */
    public record Wanted(String id, String instance) {}

    /** A lock that a node holds. */
    public record Held(String id, String owner, String instance) {}

    /** A lock under which an execution is under way. */
    public record Running(String id, String owner, long leaseMillis) {}

    /**
     * A hint whose job was not locked.
     *
     * @param job its row, if it is there
     */
    public record Refused(String id, String why, JobRow job) {}

    /** The result of locking. */
    public record Locked(List<JobRow> jobs, List<Refused> refused) {}

    private final EngineTables tables;
    private final Instances instances;

    /** Locks jobs in these tables. */
    public Locks(EngineTables tables) {
        this.tables = tables;
        this.instances = new Instances(tables);
    }

    /** Returns whether a node of Jobwire holds a lock with this owner. */
    public static boolean isOurs(String owner) {
        return owner != null && owner.startsWith(OURS);
    }

    /** Locks the jobs of these hints. Of an instance, its first unlocked job is locked. */
    public Locked lock(List<Wanted> wanted, LockTerms terms) {
        return tables.transaction(connection -> lock(connection, wanted, terms));
    }

    private Locked lock(Connection connection, List<Wanted> wanted, LockTerms terms)
            throws SQLException {
        Map<String, String> hints = new LinkedHashMap<>();
        wanted.forEach(hint -> hints.putIfAbsent(hint.id(), hint.instance()));
        Map<String, JobRow> named = tables.byId(connection, JobTable.JOB, hints.keySet()).stream()
                .collect(Collectors.toMap(JobRow::id, job -> job));
        Map<String, String> instanceOf = new LinkedHashMap<>();
        hints.forEach((id, instance) -> {
            JobRow job = named.get(id);
            instanceOf.put(id, job == null ? instance : job.instance());
        });
        Set<String> ofHints = new LinkedHashSet<>(instanceOf.values());
        ofHints.remove(null);
        Map<String, Instances.Execution> held = instances.hold(connection, ofHints);
        Set<String> free = new LinkedHashSet<>(held.keySet());
        free.removeIf(id -> held.get(id).isLocked() || held.get(id).isSuspended());
        // Read after the rows of the instances were locked, so it sees every lock.
        free.removeAll(instances.withLockedJob(connection, free));
        List<JobRow> chosen = new ArrayList<>(instances.firsts(connection, free, terms));
        for (String id : hints.keySet()) {
            JobRow job = named.get(id);
            if (job != null && job.instance() == null && !job.isLocked() && job.isReady()
                    && terms.takes(job)) {
                chosen.add(job);
            }
        }
        List<JobRow> locked = write(connection, chosen, terms);
        Set<String> ids = locked.stream().map(JobRow::id).collect(Collectors.toSet());
        List<Refused> refused = new ArrayList<>();
        for (String id : hints.keySet()) {
            if (!ids.contains(id)) {
                JobRow job = named.get(id);
                Instances.Execution instance = held.get(instanceOf.get(id));
                refused.add(new Refused(id, why(job, instance, terms), job));
            }
        }
        return new Locked(locked, refused);
    }

    /**
     * Returns the name of a refusal in the contract.
     *
     * @param instance null if another transaction has locked the row of the instance
     */
    private static String why(JobRow job, Instances.Execution instance, LockTerms terms) {
        if (job == null) {
            return "gone";
        }
        if (job.isLocked()) {
            return "locked";
        }
        if (!job.isReady()) {
            return job.table() == JobTable.SUSPENDED ? "suspended" : "not-ready";
        }
        if (!terms.takes(job)) {
            return "unserved";
        }
        if (instance == null) {
            return "busy";
        }
        // The other reason: an elder job of the instance was locked instead.
        return instance.isSuspended() ? "suspended" : "instance-held";
    }

    /**
     * Writes the locks of jobs that were read without one, and returns the jobs with their locks.
     * {@code REV_} rises as with the engine's own lock, so a polling node that has read the row
     * before can't replace the lock.
     */
    List<JobRow> write(Connection connection, List<JobRow> jobs, LockTerms terms)
            throws SQLException {
        Set<String> free = new HashSet<>(
                hold(connection, jobs.stream().map(JobRow::id).toList()));
        Instant until = tables.lockEnd(tables.now(connection), terms.leaseMillis());
        String sql = "UPDATE " + tables.jobs() + " SET REV_ = ?, LOCK_OWNER_ = ?,"
                + " LOCK_EXP_TIME_ = ? WHERE ID_ = ? AND REV_ = ? AND LOCK_EXP_TIME_ IS NULL";
        List<JobRow> locked = new ArrayList<>();
        for (JobRow job : jobs) {
            if (!free.contains(job.id())) {
                continue;
            }
            String owner = terms.nextOwner();
            JobRow next = job.locked(owner, until);
            if (tables.update(
                    connection, sql, next.revision(), owner, until, job.id(), job.revision()) == 1) {
                locked.add(next);
            }
        }
        return locked;
    }

    /**
     * Locks the rows of jobs until the transaction ends. Skips rows that other transactions have
     * locked.
     */
    List<String> hold(Connection connection, Collection<String> ids) throws SQLException {
        return tables.hold(connection, JobTable.JOB, ids);
    }

    /**
     * Extends locks without waiting for rows.
     *
     * @return the ids that were extended or are no longer executable, and the ids of own locks that
     *     were not extended, because another transaction has locked their rows
     */
    public Map<String, List<String>> renew(List<Held> held, long leaseMillis) {
        return tables.transaction(connection -> {
            List<String> ids = held.stream().map(Held::id).toList();
            Set<String> free = new HashSet<>(hold(connection, ids));
            Map<String, JobRow> rows = tables.byId(connection, JobTable.JOB, ids).stream()
                    .collect(Collectors.toMap(JobRow::id, job -> job));
            Instant until = tables.lockEnd(tables.now(connection), leaseMillis);
            List<String> renewed = new ArrayList<>();
            List<String> busy = new ArrayList<>();
            for (Held lock : held) {
                JobRow row = rows.get(lock.id());
                if (row == null) {
                    // The engine has moved it. The settlement of the lock reports its fate.
                    renewed.add(lock.id());
                } else if (tables.columns().oneTable() && !row.isLocked()) {
                    // The engine has counted a failure in place. The answer is on the way.
                    busy.add(lock.id());
                } else if (lock.owner().equals(row.owner())) {
                    boolean isFree = free.contains(lock.id());
                    if (isFree) {
                        extend(connection, lock.id(), lock.owner(), until);
                    }
                    (isFree ? renewed : busy).add(lock.id());
                }
            }
            return Map.of("renewed", renewed, "busy", busy);
        });
    }

    /**
     * Extends the lock of one job, without a new {@code REV_}. Never shortens it: the node and the
     * engine extend the same lock, each for its own time. Returns whether the owner holds the lock.
     */
    boolean extend(Connection connection, String id, String owner, Instant until)
            throws SQLException {
        return write(connection, id, owner, until) || isHeld(connection, id, owner);
    }

    private boolean write(Connection connection, String id, String owner, Instant until)
            throws SQLException {
        String sql = "UPDATE " + tables.jobs() + " SET LOCK_EXP_TIME_ = ?"
                + " WHERE ID_ = ? AND LOCK_OWNER_ = ? AND LOCK_EXP_TIME_ < ?";
        return tables.update(connection, sql, until, id, owner, until) == 1;
    }

    private boolean isHeld(Connection connection, String id, String owner) throws SQLException {
        String sql = "SELECT ID_ FROM " + tables.jobs() + " WHERE ID_ = ? AND LOCK_OWNER_ = ?";
        return !tables.query(connection, sql, List.of(id, owner), 1, row -> true).isEmpty();
    }

    /** Extends the lock of one job for its execution. Returns whether the owner holds the lock. */
    public boolean extend(String id, String owner, long leaseMillis) {
        return tables.transaction(connection ->
                extend(
                        connection, id, owner,
                        tables.lockEnd(tables.now(connection), leaseMillis)));
    }

    /**
     * Extends the locks of executions in one transaction. Waits for no row, and for no connection
     * while one is kept. Where locks of instances have no owner, also extends the engine's locks of
     * the instances: they last for five minutes by default, and an execution may be longer.
     *
     * @return the ids of the rows that were free; other transactions have locked the others
     */
    public Set<String> extend(KeptConnection kept, List<Running> running) {
        return kept.transaction(connection -> {
            Set<String> free = new HashSet<>(
                    hold(connection, running.stream().map(Running::id).toList()));
            Instant now = tables.now(connection);
            for (Running lock : running) {
                if (free.contains(lock.id())) {
                    Instant until = tables.lockEnd(now, lock.leaseMillis());
                    write(connection, lock.id(), lock.owner(), until);
                }
            }
            if (!tables.columns().instanceOwner() && !tables.columns().oneTable()) {
                long longest = running.stream().mapToLong(Running::leaseMillis).max().orElse(0);
                instances.extend(connection, List.copyOf(free), now.plusMillis(longest));
            }
            return free;
        });
    }

    /**
     * Extends and returns the locks of a node whose owners are not in this list. Reads every job.
     */
    public List<JobRow> heldBy(String node, Set<String> known, long leaseMillis) {
        return tables.transaction(connection -> {
            String sql = "SELECT " + JobTable.JOB.columns(tables.columns()) + " FROM "
                    + tables.jobs() + " WHERE LOCK_OWNER_ LIKE ? ORDER BY ID_";
            String ours = EngineTables.OURS + node + ":%";
            List<JobRow> held = tables.query(
                    connection, sql, List.of(ours), MOST,
                    tables.reader(connection, JobTable.JOB));
            Instant until = tables.lockEnd(tables.now(connection), leaseMillis);
            List<JobRow> lost = new ArrayList<>();
            for (JobRow job : held) {
                if (!known.contains(job.owner())
                        && extend(connection, job.id(), job.owner(), until)) {
                    lost.add(job);
                }
            }
            return lost;
        });
    }
}
