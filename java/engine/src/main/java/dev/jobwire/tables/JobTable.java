package dev.jobwire.tables;

import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;

/** The tables in which a job can be. */
public enum JobTable {
    /** Executable jobs. */
    JOB("ACT_RU_JOB", "job", true),
    /** Timers, and failed jobs that wait. */
    TIMER("ACT_RU_TIMER_JOB", "timer", true),
    /** Jobs of suspended instances. */
    SUSPENDED("ACT_RU_SUSPENDED_JOB", "suspended", false),
    /** Jobs without attempts left. */
    DEAD_LETTER("ACT_RU_DEADLETTER_JOB", "dead letter", false);

    private final String table;
    private final String word;
    private final boolean hasLocks;

    JobTable(String table, String word, boolean hasLocks) {
        this.table = table;
        this.word = word;
        this.hasLocks = hasLocks;
    }

    /** Returns the table with this name in the contract. */
    public static Optional<JobTable> of(String word) {
        return Stream.of(values()).filter(table -> table.word.equals(word)).findFirst();
    }

    /**
     * Returns the tables in the order of a search for a job that the engine may be moving, with one
     * transaction for each read. The executable jobs come first: a job that leaves them meanwhile
     * is in its new table when that table is read. They also come last: a timer may have become
     * executable between the first two reads.
     */
    static List<JobTable> followed() {
        return List.of(JOB, TIMER, SUSPENDED, DEAD_LETTER, JOB);
    }

    /** Returns the name in the contract. */
    public String word() {
        return word;
    }

    String table() {
        return table;
    }

    /** Returns the columns of a job, for {@link JobRow#of}. */
    String columns(Columns has) {
        return "ID_, REV_, TYPE_, PROCESS_INSTANCE_ID_, EXECUTION_ID_, PROC_DEF_ID_, TENANT_ID_,"
                + " HANDLER_TYPE_, DUEDATE_, EXCEPTION_MSG_, "
                + column(this != DEAD_LETTER, "RETRIES_") + ", "
                + column(has.createTime(), "CREATE_TIME_") + ", "
                + column(has.category(), "CATEGORY_") + ", "
                + column(has.element(), "ELEMENT_ID_") + ", "
                + column(has.scope(), "SCOPE_TYPE_") + ", "
                + column(hasLocks, "LOCK_OWNER_") + ", "
                + column(hasLocks, "LOCK_EXP_TIME_");
    }

    private static String column(boolean exists, String name) {
        return exists ? name : "NULL AS " + name;
    }
}
