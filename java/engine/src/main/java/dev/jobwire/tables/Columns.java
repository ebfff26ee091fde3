package dev.jobwire.tables;

/**
 * The columns that only some engines have.
 *
 * @param createTime jobs have a time of creation
 * @param category jobs have a category
 * @param element jobs have the id of their element
 * @param scope jobs name the engine that created them: Flowable's engines share the tables
 * @param instanceOwner the lock of an instance has an owner
 * @param externalJobs the engine has jobs of external workers
 */
public record Columns(
        boolean createTime,
        boolean category,
        boolean element,
        boolean scope,
        boolean instanceOwner,
        boolean externalJobs) {
    /** Returns the columns of Flowable 6.8 to 8. */
    public static Columns ofFlowable() {
        return new Columns(true, true, true, true, true, true);
    }

    /** Returns the columns of Activiti 6 and 7. */
    public static Columns ofActiviti() {
        return new Columns(false, false, false, false, false, false);
    }

    /** Returns a condition: a job of a process. */
    String ofProcesses(String alias) {
        String type = alias + "SCOPE_TYPE_";
        return scope ? "(" + type + " IS NULL OR " + type + " = 'bpmn')" : "1 = 1";
    }

    /** Returns the order in which the jobs of an instance run. */
    String byAge() {
        return createTime ? "CREATE_TIME_, ID_" : "ID_";
    }
}
