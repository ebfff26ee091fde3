package jobwire.engines;

import java.util.Map;
import java.util.Optional;

/** What the requests of tests need of an engine. */
public interface Engine {
    /** Its name and version. */
    String name();

    /** Deploys one of {@link Processes}, unless the same text is deployed already. */
    void deploy(String process);

    /** Starts an instance in a transaction of its own and returns its id. */
    String start(String process, Map<String, Object> variables);

    /** Completes the open user tasks of an instance, each in a transaction of its own. */
    int completeTasks(String instance);

    /** Suspends an instance. */
    void suspend(String instance);

    /** Activates a suspended instance. */
    void activate(String instance);

    /**
     * Locks a job by the engine's own rules, runs it, and returns what became of it as JSON. Empty
     * if there is no such job, or the engine has no such way.
     */
    default Optional<String> execute(String job) {
        return Optional.empty();
    }
}
