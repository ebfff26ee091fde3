package dev.jobwire.endpoint;

import java.util.Optional;

/** Runs jobs of one engine by the engine's own rules. */
public interface JobRunner {
    /**
     * Runs a job and returns what became of it; empty if it is not executable. A job that fails is
     * no failure of this method: the engine counts it.
     *
     * @param lock who locks the instance of the job
     */
    Optional<ExecutedJob> run(String job, InstanceLock lock);
}
