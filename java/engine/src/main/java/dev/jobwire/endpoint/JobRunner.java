package dev.jobwire.endpoint;

import java.util.Collection;
import java.util.Optional;

/** Runs jobs of one engine by the engine's own rules. */
public interface JobRunner {
    /**
     * Runs a job and returns its state. Returns empty if the job is not executable, or if the
     * caller does not hold its lock. If the job fails, the engine counts the failure, and this
     * method succeeds. If the failure could not be counted, the state may be {@link
     * ExecutedJob.State#UNRECORDED}, and the lock stays.
     *
     * @param lock the locks that the caller holds
     */
    Optional<ExecutedJob> run(String job, CallerLock lock);

    /** Returns whether the caller can hold the instances of its jobs. */
    default boolean takesHeldInstances() {
        return false;
    }

    /**
     * Returns the categories whose jobs this node of the engine runs; empty if it runs all. A job
     * without a category runs on any node.
     */
    default Optional<Collection<String>> categories() {
        return Optional.empty();
    }
}
