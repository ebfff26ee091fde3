package dev.jobwire.endpoint;

import dev.jobwire.tables.EngineTables;
import dev.jobwire.tables.Timers;

/** An engine whose jobs are locked, run and rescued over the endpoint alone. */
public interface JobEngine extends JobRunner, JobOperator {
    /** Returns {@code flowable}, {@code activiti} or {@code camunda}. */
    String name();

    /** Returns the version of the engine's schema; null if it is not recorded. */
    String version();

    /** Returns whether the engine's own executor is active. */
    boolean hasExecutor();

    /** Returns the tables of its jobs. */
    EngineTables tables();

    /**
     * Makes a due timer executable in a transaction of the engine, which maintains the engine's job
     * counts. {@link Timers#mayMove} decides within that transaction. Returns false if the timer
     * waits. An engine whose timers become due in their rows moves none.
     */
    default boolean moveTimer(String timer) {
        return false;
    }
}
