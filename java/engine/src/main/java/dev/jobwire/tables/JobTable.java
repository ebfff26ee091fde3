package dev.jobwire.tables;

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

    /** Returns the table that a word of the contract names. */
    public static Optional<JobTable> of(String word) {
        return Stream.of(values()).filter(table -> table.word.equals(word)).findFirst();
    }

    /** Returns the word of the contract. */
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
