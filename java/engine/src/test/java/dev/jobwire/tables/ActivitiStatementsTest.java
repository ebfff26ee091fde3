package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Activiti's tables have fewer columns than Flowable's. */
class ActivitiStatementsTest {
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

    private final RecordingDatabase database = new RecordingDatabase();
    private final EngineTables tables = database.tables(Columns.ofActiviti());

    @Test
    void everyStatementNamesOnlyColumnsThatItsTablesHave() {
        EveryOperation.on(database, tables);
        database.isInstanceLocked = true;
        EveryOperation.on(database, tables);
        database.isJobLocked = true;
        EveryOperation.on(database, tables);
        assertEquals(MORE.keySet(), EveryOperation.tables(database.statements, OF_JOBS, MORE));
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
