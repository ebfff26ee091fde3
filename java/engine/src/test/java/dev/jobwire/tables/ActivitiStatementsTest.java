package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Instant;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** Activiti's tables have fewer columns than Flowable's. */
class ActivitiStatementsTest {
    private static final String NODE = "0198c0de-7777-7000-8000-000000000001";
    private static final String OWNER = RecordingDatabase.ID;
    /** The columns of all tables of jobs. */
    private static final Set<String> OF_JOBS = Set.of(
            "ID_", "REV_", "TYPE_", "EXCLUSIVE_", "EXECUTION_ID_", "PROCESS_INSTANCE_ID_",
            "PROC_DEF_ID_", "EXCEPTION_STACK_ID_", "EXCEPTION_MSG_", "DUEDATE_", "REPEAT_",
            "HANDLER_TYPE_", "HANDLER_CFG_", "TENANT_ID_");
    /** More columns, by table. */
    private static final Map<String, Set<String>> MORE = Map.of(
            "ACT_RU_JOB", Set.of("LOCK_EXP_TIME_", "LOCK_OWNER_", "RETRIES_"),
            "ACT_RU_TIMER_JOB", Set.of("LOCK_EXP_TIME_", "LOCK_OWNER_", "RETRIES_"),
            "ACT_RU_SUSPENDED_JOB", Set.of("RETRIES_"),
            "ACT_RU_DEADLETTER_JOB", Set.of(),
            "ACT_RU_EXECUTION", Set.of("ID_", "LOCK_TIME_", "SUSPENSION_STATE_"),
            "ACT_GE_PROPERTY", Set.of("NAME_", "VALUE_", "REV_"));
    private static final Pattern TABLE = Pattern.compile("\\bACT_[A-Z_]*[A-Z]\\b");
    private static final Pattern COLUMN = Pattern.compile("\\b[A-Z][A-Z_]*_(?![A-Z_])");

    private final RecordingDatabase database = new RecordingDatabase();
    private final EngineTables tables = database.tables(Columns.ofActiviti());

    private LockTerms terms() {
        return new LockTerms(NODE, 1, 30_000, null, null);
    }

    private void everyOperation() {
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
        Timers timers = new Timers(tables);
        timers.move(10, id -> tables.transaction(
                connection -> timers.mayMove(connection, id, OWNER, Instant.EPOCH)));
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

    @Test
    void everyStatementNamesOnlyColumnsThatItsTablesHave() {
        everyOperation();
        database.isInstanceLocked = true;
        everyOperation();
        database.isJobLocked = true;
        everyOperation();
        Set<String> used = new HashSet<>();
        for (String sql : database.statements) {
            Set<String> has = new HashSet<>();
            boolean isOfJobs = false;
            Matcher table = TABLE.matcher(sql);
            while (table.find()) {
                Set<String> more = MORE.get(table.group());
                assertTrue(more != null, "Activiti has no such table: " + sql);
                has.addAll(more);
                isOfJobs |= table.group().endsWith("_JOB");
                used.add(table.group());
            }
            if (isOfJobs) {
                has.addAll(OF_JOBS);
            }
            Matcher column = COLUMN.matcher(sql.replaceAll("NULL AS [A-Z_]+", ""));
            while (column.find()) {
                assertTrue(has.contains(column.group()), column.group() + " in " + sql);
            }
        }
        assertEquals(MORE.keySet(), used);
    }

    /** Its lock lasts for five minutes by default, and an execution may be longer. */
    @Test
    void theEnginesLockOfTheInstanceOfALongExecutionIsExtended() {
        String extension = "UPDATE ACT_RU_EXECUTION SET LOCK_TIME_ = ?"
                + " WHERE ID_ = ? AND LOCK_TIME_ < ?";
        List<Locks.Running> running = List.of(new Locks.Running(OWNER, OWNER, 15_000));
        new Locks(tables).extend(new KeptConnection(tables), running);
        assertTrue(database.statements.contains(extension), database.statements.toString());
        database.statements.clear();
        EngineTables ofFlowable = database.tables(Columns.ofFlowable());
        new Locks(ofFlowable).extend(new KeptConnection(ofFlowable), running);
        assertTrue(!database.statements.contains(extension), "Flowable's lasts for an hour");
    }
}
