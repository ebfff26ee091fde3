package jobwire.engines.camunda7;

import jobwire.engines.Work;

/**
 * The bean {@code local} of the process {@code local}. Only a program with the property {@code
 * local} has it: on the others the process fails, as one whose classes are missing.
 */
public final class Local {
    private final Work work;

    Local(Work work) {
        this.work = work;
    }

    /** Leaves an effect. */
    public void once(String instance, String activity) {
        work.once(instance, activity);
    }
}
