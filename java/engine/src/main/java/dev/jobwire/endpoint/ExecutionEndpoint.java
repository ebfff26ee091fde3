package dev.jobwire.endpoint;

import dev.jobwire.Json;
import java.util.Optional;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The execution endpoint without a server: an application calls it for a {@code POST} of {@code
 * /jobwire/jobs/ID/execute} and a {@code GET} of {@code /jobwire/scope}, behind its authentication.
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

    /** Runs a job and returns the answer: 200 with the job's state, 404 or 500. Never fails. */
    public Answer execute(String job) {
        try {
            Optional<ExecutedJob> executed = runner.run(job);
            return executed.map(became -> new Answer(200, became.json()))
                    .orElseGet(() -> error(404, "there is no executable job " + job));
        } catch (RuntimeException | LinkageError failed) {
            LOG.warn("job {} could not be executed", job, failed);
            return error(500, failed.toString());
        }
    }

    /**
     * Returns which jobs this node of the engine runs, for a {@code GET} of {@code /jobwire/scope}:
     * {@code {"categories": ["red"]}}, or {@code {"categories": null}} for all. Never fails.
     */
    public Answer scope() {
        try {
            String categories = runner.categories()
                    .map(names -> names.stream()
                            .map(Json::quoted)
                            .collect(Collectors.joining(",", "[", "]")))
                    .orElse("null");
            return new Answer(200, "{\"categories\":" + categories + "}");
        } catch (RuntimeException failed) {
            LOG.warn("the engine does not say which jobs it runs", failed);
            return error(500, failed.toString());
        }
    }

    private static Answer error(int status, String message) {
        return new Answer(status, "{\"message\":" + Json.quoted(message) + "}");
    }
}
