package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.Instant;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Camunda has one table of jobs, whose columns tell the state of a job. */
class CamundaStatementsTest {
    private static final String OWNER = RecordingDatabase.ID;
    private static final String CLEAR = "UPDATE ACT_RU_JOB SET LOCK_OWNER_ = NULL,"
            + " LOCK_EXP_TIME_ = NULL WHERE ID_ = ? AND LOCK_OWNER_ = ?";
    private static final Map<String, Set<String>> TABLES = Map.of(
            "ACT_RU_JOB", Set.of(
                    "ID_", "REV_", "TYPE_", "LOCK_EXP_TIME_", "LOCK_OWNER_", "EXCLUSIVE_",
                    "EXECUTION_ID_", "ROOT_PROC_INST_ID_", "PROCESS_INSTANCE_ID_",
                    "PROCESS_DEF_ID_", "RETRIES_", "EXCEPTION_STACK_ID_", "EXCEPTION_MSG_",
                    "FAILED_ACT_ID_", "DUEDATE_", "HANDLER_TYPE_", "HANDLER_CFG_",
                    "DEPLOYMENT_ID_", "SUSPENSION_STATE_", "PRIORITY_", "SEQUENCE_COUNTER_",
                    "TENANT_ID_", "CREATE_TIME_"),
            "ACT_RU_EXECUTION", Set.of("ID_", "REV_", "SUSPENSION_STATE_"),
            "ACT_GE_PROPERTY", Set.of("NAME_", "VALUE_", "REV_"));

    private final RecordingDatabase database = new RecordingDatabase();
    private final EngineTables tables = database.tables(Columns.ofCamunda());

    @Test
    void everyStatementNamesOnlyColumnsThatItsTablesHave() {
        EveryOperation.on(database, tables);
        database.isJobLocked = true;
        EveryOperation.on(database, tables);
        database.retries = 0;
        EveryOperation.on(database, tables);
        assertEquals(
                TABLES.keySet(), EveryOperation.tables(database.statements, Set.of(), TABLES));
    }

    @Test
    void theColumnsTellTheState() {
        Instant now = Instant.EPOCH;
        assertEquals(JobTable.JOB, JobTable.of(3, 1, null, now));
        assertEquals(JobTable.JOB, JobTable.of(1, 1, now, now));
        assertEquals(JobTable.TIMER, JobTable.of(3, 1, now.plusMillis(1), now));
        assertEquals(JobTable.SUSPENDED, JobTable.of(3, 2, now.plusMillis(1), now));
        assertEquals(JobTable.DEAD_LETTER, JobTable.of(0, 2, null, now));
    }

    private String fate(String owner, boolean isUnanswered) {
        database.statements.clear();
        Settlement.Ending ending = new Settlement.Ending(
                new Locks.Held(OWNER, owner, OWNER), isUnanswered);
        return new Settlement(tables).settle(List.of(ending), null).fates().get(0).fate();
    }

    private void assertFate(String fate, boolean isCleared) {
        assertEquals(fate, fate(OWNER, false));
        assertEquals(isCleared, database.statements.contains(CLEAR));
    }

    /** The engine counts a failure in the row, and clears the lock itself. */
    @Test
    void theRowTellsTheFateOfAJob() {
        assertFate("retry", false);
        database.retries = 0;
        assertFate("dead-letter", false);
        database.retries = 2;
        database.suspension = 2;
        assertFate("suspended", false);
        database.isJobLocked = true;
        assertFate("suspended", true);
        database.suspension = 1;
        assertFate("released", true);
        database.retries = 0;
        assertFate("dead-letter", true);
    }

    @Test
    void theLockOfAnotherOwnerOrOfAnExecutionWithoutAnAnswerStays() {
        database.isJobLocked = true;
        assertEquals("unknown", fate(OWNER, true));
        assertTrue(!database.statements.contains(CLEAR));
        assertEquals("lost", fate(OWNER + "1", false));
        assertTrue(!database.statements.contains(CLEAR));
    }

    private String refusal() {
        Locks.Locked locked = new Locks(tables)
                .lock(List.of(new Locks.Wanted(OWNER, OWNER)), EveryOperation.terms());
        assertEquals(List.of(), locked.jobs());
        return locked.refused().get(0).why();
    }

    @Test
    void aJobThatMayNotRunIsNotLocked() {
        database.retries = 0;
        assertEquals("not-ready", refusal());
        database.retries = 3;
        database.suspension = 2;
        assertEquals("suspended", refusal());
    }

    /** The failure has ended the lock, and the answer of the execution is on the way. */
    @Test
    void aRenewalOfAJobThatFailedInItsRowIsTriedAgain() {
        List<Locks.Held> held = List.of(new Locks.Held(OWNER, OWNER, OWNER));
        Map<String, List<String>> renewed = new Locks(tables).renew(held, 30_000);
        assertEquals(Map.of("renewed", List.of(), "busy", List.of(OWNER)), renewed);
    }

    /** MySQL cuts the fraction of a second. */
    @Test
    void aLockIsNotShorterThanItsLease() {
        Instant begin = Instant.parse("2026-11-27T12:00:00.001Z");
        assertEquals(
                Instant.parse("2026-11-27T12:00:31Z"), tables.lockEnd(begin, 30_000));
        assertEquals(
                Instant.parse("2026-11-27T12:00:30Z"), tables.lockEnd(begin, 29_999));
        EngineTables ofFlowable = database.tables(Columns.ofFlowable());
        assertEquals(begin.plusSeconds(30), ofFlowable.lockEnd(begin, 30_000));
    }

    private Duration beginOfReport(DueTimers timers, int atMost) {
        database.times.clear();
        timers.report(atMost);
        // The first time is now.
        return Duration.between(database.times.get(1), database.times.get(0));
    }

    /** The answer of the last report may be lost. */
    @Test
    void aReportOfTimersRepeatsTheLastOneAndContinuesTheOneBefore() {
        DueTimers timers = new DueTimers(tables);
        assertEquals(5, beginOfReport(timers, 10).toMinutes());
        assertEquals(5, beginOfReport(timers, 10).toMinutes());
        Duration next = beginOfReport(timers, 10);
        assertTrue(next.toSeconds() >= 1 && next.toSeconds() < 60, next.toString());
        // The page is full, so the last report but one ends with its last timer, an hour ago.
        assertEquals(1, timers.report(1).ready().size());
        timers.report(1);
        Duration full = beginOfReport(timers, 1);
        assertTrue(full.toMinutes() >= 60, full.toString());
    }

    @Test
    void aReportThatDidNotCommitIsNone() {
        DueTimers timers = new DueTimers(tables);
        database.isCommitBroken = true;
        assertThrows(TablesException.class, () -> timers.report(10));
        database.isCommitBroken = false;
        assertEquals(5, beginOfReport(timers, 10).toMinutes());
        assertEquals(5, beginOfReport(timers, 10).toMinutes());
        assertTrue(beginOfReport(timers, 10).toSeconds() < 60);
    }

    private boolean isDue(Instant due) {
        return tables.transaction(connection ->
                tables.isDue(connection, due == null ? null : Date.from(due)));
    }

    @Test
    void aJobIsDueByTheClockOfTheDatabase() {
        assertTrue(isDue(null) && isDue(RecordingDatabase.NOW));
        assertFalse(isDue(RecordingDatabase.NOW.plusSeconds(3_600)));
    }

    @Test
    void theRestOfAFullPageFollowsAtOnce() {
        Timers.Moved full = new DueTimers(tables).report(1);
        assertEquals(full.now(), full.nextDue());
        // The next due date of all timers.
        assertTrue(new DueTimers(tables).report(2).nextDue().isBefore(full.now()));
    }
}
