package dev.jobwire.tables;

/**
 * The columns and tables that only some engines have.
 *
 * @param createTime jobs have a time of creation
 * @param category jobs have a category
 * @param element jobs have the id of their element
 * @param scope jobs name the engine that created them: Flowable's engines share the tables
 * @param instanceOwner the lock of an instance has an owner
 * @param externalJobs the engine has jobs of external workers
 * @param oneTable all jobs stay in one table for their whole life: its columns show whether a job is
 *     due, suspended or without attempts. Instances have no lock
 */
public record Columns(
        boolean createTime,
        boolean category,
        boolean element,
        boolean scope,
        boolean instanceOwner,
        boolean externalJobs,
        boolean oneTable) {
    /** A job was created before another one at the same time. Its time may have whole seconds. */
    private static final String SAME_TIME = "(s.SEQUENCE_COUNTER_ < j.SEQUENCE_COUNTER_"
            + " OR (s.SEQUENCE_COUNTER_ = j.SEQUENCE_COUNTER_ AND s.ID_ < j.ID_))";

    /** Returns the columns of Flowable 6.8 to 8. */
    public static Columns ofFlowable() {
        return new Columns(true, true, true, true, true, true, false);
    }

    /** Returns the columns of Activiti 6 and 7. */
    public static Columns ofActiviti() {
        return new Columns(false, false, false, false, false, false, false);
    }

    /** Returns the columns of Camunda 7 and the engines that share its schema. */
    public static Columns ofCamunda() {
        return new Columns(true, false, true, false, false, false, true);
    }

    /** Returns a condition: a job of a process. */
    String ofProcesses(String alias) {
        String type = alias + "SCOPE_TYPE_";
        return scope ? "(" + type + " IS NULL OR " + type + " = 'bpmn')" : "1 = 1";
    }

    /** Returns the order in which the jobs of an instance run. */
    String byAge() {
        if (oneTable) {
            return readySince("") + ", SEQUENCE_COUNTER_, ID_";
        }
        return createTime ? "CREATE_TIME_, ID_" : "ID_";
    }

    /** Returns the time since which an executable job is ready. */
    String readySince(String alias) {
        if (oneTable) {
            return "COALESCE(" + alias + "DUEDATE_, " + alias + "CREATE_TIME_)";
        }
        return createTime ? alias + "CREATE_TIME_" : "NULL";
    }

    /** Returns a condition: the job {@code s} runs before the executable job {@code j}. */
    String isElder() {
        if (!createTime) {
            return "s.ID_ < j.ID_";
        }
        String since = readySince("s.") + " = " + readySince("j.");
        String elder = readySince("s.") + " < " + readySince("j.")
                + " OR (" + since + " AND " + (oneTable ? SAME_TIME : "s.ID_ < j.ID_") + ")";
        // A job that is not due is younger than each job that is.
        return oneTable ? isRunnable("s.") + " AND (" + elder + ")" : elder;
    }

    /**
     * Returns a condition: the jobs {@code s} and {@code j} of an instance need the same nodes. A node
     * may take the jobs of some categories only.
     */
    String hasSameNeed() {
        return category
                ? "(s.CATEGORY_ = j.CATEGORY_ OR (s.CATEGORY_ IS NULL AND j.CATEGORY_ IS NULL))"
                : "1 = 1";
    }

    /** Returns a condition: a job of the one table is not suspended and has an attempt left. */
    String isRunnable(String alias) {
        return alias + "RETRIES_ > 0 AND " + alias + "SUSPENSION_STATE_ = 1";
    }
}
