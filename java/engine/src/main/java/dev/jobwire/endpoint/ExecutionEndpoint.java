package dev.jobwire.endpoint;

import dev.jobwire.Json;
import java.util.Optional;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The execution endpoint without a server. An authenticated application calls it for a {@code
 * POST} to {@code /jobwire/jobs/ID/execute}, with its parameter {@code instance}, and for a {@code
 * GET} of {@code /jobwire/scope}.
 */
public final class ExecutionEndpoint {
    private static final Logger LOG = LoggerFactory.getLogger(ExecutionEndpoint.class);

    /**
     * An answer.
     *
     * @param status the HTTP status
     * @param json the body, of the type application/json
     */
    public record Answer(int status, String json) {}

    private final JobRunner runner;

    /** Creates an endpoint. The runner runs its jobs. */
    public ExecutionEndpoint(JobRunner runner) {
        this.runner = runner;
    }

    /**
     * Runs a job and returns the answer: 200 with its state, 400, 404 or 500. Never fails.
     *
     * @param instance the parameter {@code instance} of the request; null without one
     */
    public Answer execute(String job, String instance) {
        try {
            Optional<CallerLock> lock = CallerLock.named(instance);
            if (lock.isEmpty()) {
                return error(400, "instance must be held, or left out: " + instance);
            }
            Optional<ExecutedJob> executed = runner.run(job, lock.get());
            return executed.map(became -> new Answer(200, became.json()))
                    .orElseGet(() -> error(404, "there is no executable job " + job
                            + (lock.get().holdsInstance() ? " that a node has locked" : "")));
        } catch (RuntimeException | LinkageError failed) {
            LOG.warn("job {} could not be executed", job, failed);
            return error(500, failed.toString());
        }
    }

    /**
     * Returns the jobs that this node of the engine runs, for a {@code GET} of {@code
     * /jobwire/scope}: {@code {"categories": ["red"]}}, or {@code {"categories": null}} for all.
     * The answer has {@code "instance": "held"} if the caller can hold the instances of its jobs.
     * Never fails.
     */
    public Answer scope() {
        try {
            String categories = runner.categories()
                    .map(names -> names.stream()
                            .map(Json::quoted)
                            .collect(Collectors.joining(",", "[", "]")))
                    .orElse("null");
            String instance = runner.takesHeldInstances() ? ",\"instance\":\"held\"" : "";
            return new Answer(200, "{\"categories\":" + categories + instance + "}");
        } catch (RuntimeException failed) {
            LOG.warn("the categories of the engine could not be read", failed);
            return error(500, failed.toString());
        }
    }

    private static Answer error(int status, String message) {
        return new Answer(status, "{\"message\":" + Json.quoted(message) + "}");
    }
}
