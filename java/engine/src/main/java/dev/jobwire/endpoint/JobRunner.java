package dev.jobwire.endpoint;

import java.util.Collection;
import java.util.Optional;

/** Runs jobs of one engine by the engine's own rules. */
public interface JobRunner {
    /**
     * Runs a job and returns what became of it; empty if it is not executable. A job that fails is
     * no failure of this method: the engine counts it.
     */
    Optional<ExecutedJob> run(String job);

    /**
     * Returns the categories whose jobs this node of the engine runs; empty if it runs all. A job
     * without a category runs on any node.
     */
    default Optional<Collection<String>> categories() {
        return Optional.empty();
    }
}
