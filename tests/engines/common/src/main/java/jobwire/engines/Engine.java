package jobwire.engines;

import java.util.Map;

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
}
