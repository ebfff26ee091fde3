package dev.jobwire.tables;

import java.time.Instant;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;

/** The states of a job, each a table. Where all jobs have one table, its columns show the state. */
public enum JobTable {
    /** Executable jobs. */
    JOB("ACT_RU_JOB", "job", true),
    /** Timers, and failed jobs that wait. */
    TIMER("ACT_RU_TIMER_JOB", "timer", true),
    /** Jobs of suspended instances. */
    SUSPENDED("ACT_RU_SUSPENDED_JOB", "suspended", false),
    /** Jobs without attempts left. */
    DEAD_LETTER("ACT_RU_DEADLETTER_JOB", "dead letter", false);

    private static final String ALL_IN_ONE = "ID_, REV_, TYPE_, PROCESS_INSTANCE_ID_, EXECUTION_ID_,"
            + " PROCESS_DEF_ID_ AS PROC_DEF_ID_, TENANT_ID_, HANDLER_TYPE_, DUEDATE_, EXCEPTION_MSG_,"
            + " RETRIES_, CREATE_TIME_, NULL AS CATEGORY_, FAILED_ACT_ID_ AS ELEMENT_ID_,"
            + " NULL AS SCOPE_TYPE_, LOCK_OWNER_, LOCK_EXP_TIME_, SUSPENSION_STATE_";

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

    /** Returns the name of the table that has such jobs. */
    String table(Columns has) {
        return has.oneTable() ? JOB.table : table;
    }

    /** Returns the tables in which engines with these columns have jobs. */
    static List<JobTable> all(Columns has) {
        return has.oneTable() ? List.of(JOB) : List.of(values());
    }

    /**
     * Returns a condition: a row of the table is such a job of a process. Adds the values of its
     * parameters.
     */
    String condition(Columns has, String alias, Instant now, List<Object> parameters) {
        if (!has.oneTable()) {
            return has.ofProcesses(alias);
        }
        String due = alias + "DUEDATE_";
        switch (this) {
            case JOB -> {
                parameters.add(now);
                return has.isRunnable(alias) + " AND (" + due + " IS NULL OR " + due + " <= ?)";
            }
            case TIMER -> {
                parameters.add(now);
                return has.isRunnable(alias) + " AND " + due + " > ?";
            }
            case SUSPENDED -> {
                return alias + "RETRIES_ > 0 AND " + alias + "SUSPENSION_STATE_ = 2";
            }
            default -> {
                return alias + "RETRIES_ <= 0";
            }
        }
    }

    /** Returns the state of a job by its columns, like the conditions. */
    static JobTable of(int retries, int suspension, Instant due, Instant now) {
        if (retries <= 0) {
            return DEAD_LETTER;
        }
        if (suspension == 2) {
            return SUSPENDED;
        }
        return due != null && due.isAfter(now) ? TIMER : JOB;
    }

    /** Returns the columns of a job, for {@link EngineTables#reader}. */
    String columns(Columns has) {
        if (has.oneTable()) {
            return ALL_IN_ONE;
        }
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
