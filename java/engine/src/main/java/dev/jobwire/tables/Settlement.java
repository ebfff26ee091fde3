package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Ends locks: reports the fate of each job, and hands off its instance to the next job. */
public final class Settlement {
    /**
     * A lock that ends.
     *
     * @param isUnanswered the execution gave no answer: the lock stays until it expires
     */
    public record Ending(Locks.Held held, boolean isUnanswered) {}

    /** The fate of a job, and its row, if it exists. */
    public record Fate(String id, String fate, JobRow job) {}

    /**
     * The result.
     *
     * @param next the next jobs of the instances, locked
     * @param ready jobs that are ready and were not locked
     */
    public record Settled(List<Fate> fates, List<JobRow> next, List<JobRow> ready) {}

    private final EngineTables tables;
    private final Instances instances;
    private final Locks locks;

    /** Settles locks in these tables. */
    public Settlement(EngineTables tables) {
        this.tables = tables;
        this.instances = new Instances(tables);
        this.locks = new Locks(tables);
    }

    /** Settles locks. Without terms, reports the next jobs of each instance and locks none. */
    public Settled settle(List<Ending> endings, LockTerms terms) {
        return tables.transaction(connection -> settle(connection, endings, terms));
    }

    private Settled settle(Connection connection, List<Ending> endings, LockTerms terms)
            throws SQLException {
        List<String> ids = endings.stream().map(ending -> ending.held().id()).toList();
        Set<String> named = new LinkedHashSet<>();
        endings.forEach(ending -> named.add(ending.held().instance()));
        named.remove(null);
        Map<String, Instances.Execution> held = instances.hold(connection, named);
        named.removeAll(held.keySet());
        Set<String> skipped = instances.existing(connection, named);
        Set<String> free = new HashSet<>(locks.hold(connection, ids));
        Map<String, JobRow> rows = rows(connection, ids);
        List<Fate> fates = new ArrayList<>();
        List<JobRow> alone = new ArrayList<>();
        Set<String> left = new LinkedHashSet<>();
        for (Ending ending : endings) {
            Locks.Held lock = ending.held();
            JobRow row = rows.get(lock.id());
            // Another transaction has locked the row of the instance. The node tries again, since
            // no other part would hand the instance on.
            String fate = skipped.contains(lock.instance())
                    ? "busy"
                    : fate(connection, ending, row, free.contains(lock.id()));
            fates.add(new Fate(lock.id(), fate, row));
            boolean isOver = !Set.of("unknown", "lost", "busy").contains(fate);
            if (isOver && lock.instance() != null) {
                left.add(lock.instance());
            } else if (isOver && row != null && row.isReady()) {
                alone.add(row);
            }
        }
        held.keySet().retainAll(left);
        return handOn(connection, held, terms, new Settled(fates, new ArrayList<>(), alone));
    }

    private Map<String, JobRow> rows(Connection connection, List<String> ids) throws SQLException {
        Map<String, JobRow> rows = new HashMap<>();
        Set<String> open = new LinkedHashSet<>(ids);
        for (JobTable table : tables.columns().oneTable()
                ? List.of(JobTable.JOB)
                : JobTable.followed()) {
            for (JobRow row : tables.byId(connection, table, open)) {
                rows.putIfAbsent(row.id(), row);
            }
            open.removeAll(rows.keySet());
        }
        return rows;
    }

    private String fate(Connection connection, Ending ending, JobRow row, boolean isFree)
            throws SQLException {
        if (row == null) {
            return "done";
        }
        if (tables.columns().oneTable()) {
            return fateInPlace(connection, ending, row, isFree);
        }
        switch (row.table()) {
            case TIMER -> {
                return "retry";
            }
            case SUSPENDED -> {
                return "suspended";
            }
            case DEAD_LETTER -> {
                return "dead-letter";
            }
            default -> {
            }
        }
        if (!row.isLocked()) {
            // The engine has returned it.
            return "released";
        }
        if (!ending.held().owner().equals(row.owner())) {
            return "lost";
        }
        if (ending.isUnanswered()) {
            return "unknown";
        }
        if (!isFree) {
            return "busy";
        }
        return clear(connection, row) ? "released" : "lost";
    }

    /** Returns the fate of a job whose row stays in its table for its whole life. */
    private String fateInPlace(Connection connection, Ending ending, JobRow row, boolean isFree)
            throws SQLException {
        boolean isOurs = ending.held().owner().equals(row.owner());
        if (row.isLocked() && !isOurs) {
            return "lost";
        }
        if (isOurs && ending.isUnanswered()) {
            return "unknown";
        }
        if (isOurs && !isFree) {
            return "busy";
        }
        if (isOurs && !clear(connection, row)) {
            return "lost";
        }
        return switch (row.table()) {
            case SUSPENDED -> "suspended";
            case DEAD_LETTER -> "dead-letter";
            // The engine has ended the lock itself: it has counted a failure, or the job repeats.
            default -> isOurs ? "released" : "retry";
        };
    }

    private boolean clear(Connection connection, JobRow row) throws SQLException {
        String sql = "UPDATE " + tables.jobs() + " SET LOCK_OWNER_ = NULL, LOCK_EXP_TIME_ = NULL"
                + " WHERE ID_ = ? AND LOCK_OWNER_ = ?";
        return tables.update(connection, sql, row.id(), row.owner()) == 1;
    }

    /** Locks the next job of each instance, or reports it. */
    private Settled handOn(
            Connection connection,
            Map<String, Instances.Execution> held,
            LockTerms terms,
            Settled settled)
            throws SQLException {
        Set<String> cleared = instances.clearLeft(connection, held);
        Set<String> free = new HashSet<>(held.keySet());
        free.removeIf(id -> held.get(id).isSuspended()
                || (held.get(id).isLocked() && !cleared.contains(id)));
        free.removeAll(instances.withLockedJob(connection, free));
        List<JobRow> firsts = List.of();
        if (terms != null) {
            firsts = instances.firsts(connection, free, terms);
            List<JobRow> next = locks.write(connection, firsts, terms);
            settled.next().addAll(next);
            next.forEach(job -> free.remove(job.instance()));
        }
        if (terms == null || !terms.takesAll()) {
            // The next job of an instance may be for another node, whose hint came too early.
            firsts = instances.firstsOfEachCategory(connection, free);
        }
        firsts.stream()
                .filter(job -> free.contains(job.instance()))
                .forEach(settled.ready()::add);
        return settled;
    }
}
