package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Instant;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Does each operation once, and finds the tables and columns of its statements. */
final class EveryOperation {
    private static final String NODE = "0198c0de-7777-7000-8000-000000000001";
    private static final String OWNER = RecordingDatabase.ID;
    private static final Pattern TABLE = Pattern.compile("\\bACT_[A-Z_]*[A-Z]\\b");
    private static final Pattern COLUMN = Pattern.compile("\\b[A-Z][A-Z_]*_(?![A-Z_])");

    private EveryOperation() {}

    /** Returns the terms of a node that takes all jobs. */
    static LockTerms terms() {
        return new LockTerms(NODE, 1, 30_000, null, null);
    }

    static void on(RecordingDatabase database, EngineTables tables) {
        Locks locks = new Locks(tables);
        Locks.Held held = new Locks.Held(OWNER, OWNER, OWNER);
        locks.lock(List.of(new Locks.Wanted(OWNER, OWNER)), terms());
        locks.renew(List.of(held), 30_000);
        locks.extend(OWNER, OWNER, 30_000);
        locks.extend(
                new KeptConnection(tables), List.of(new Locks.Running(OWNER, OWNER, 15_000)));
        if (database.isJobLocked) {
            // Its rows are locked.
            locks.heldBy(NODE, Set.of(), 30_000);
        }
        Settlement settlement = new Settlement(tables);
        settlement.settle(List.of(new Settlement.Ending(held, false)), terms());
        settlement.settle(List.of(new Settlement.Ending(held, true)), null);
        if (tables.columns().oneTable()) {
            new DueTimers(tables).report(10);
        } else {
            Timers timers = new Timers(tables);
            timers.move(10, id -> tables.transaction(
                    connection -> timers.mayMove(connection, id, OWNER, Instant.EPOCH)));
        }
        new Rescue(tables).rescue(10);
        Sweep sweep = new Sweep(tables);
        sweep.orphans(OWNER, Instant.EPOCH, 10);
        sweep.backlog();
        sweep.waiting();
        JobList list = new JobList(tables);
        Set<JobTable> all = EnumSet.allOf(JobTable.class);
        list.find(new JobList.Filter(all, null, OWNER, "event", OWNER), 10);
        list.find(new JobList.Filter(all, List.of(OWNER), null, null, null), 10);
        new Health(tables).fields();
        new Release(tables).all();
        new LeaderLease(tables).take(NODE, "rabbitmq", 10_000);
    }

    /**
     * Returns the tables that statements name. Fails if one names a column that none of its tables
     * has.
     *
     * @param ofJobs the columns of all tables of jobs
     * @param more more columns, by table
     */
    static Set<String> tables(
            List<String> statements, Set<String> ofJobs, Map<String, Set<String>> more) {
        Set<String> used = new HashSet<>();
        for (String sql : statements) {
            Set<String> has = new HashSet<>();
            Matcher table = TABLE.matcher(sql);
            while (table.find()) {
                Set<String> columns = more.get(table.group());
                assertTrue(columns != null, "the engine has no such table: " + sql);
                has.addAll(columns);
                if (table.group().endsWith("_JOB")) {
                    has.addAll(ofJobs);
                }
                used.add(table.group());
            }
            Matcher column = COLUMN.matcher(sql.replaceAll("\\bAS [A-Z_]+", ""));
            while (column.find()) {
                assertTrue(has.contains(column.group()), column.group() + " in " + sql);
            }
        }
        return used;
    }
}
