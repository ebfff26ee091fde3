package dev.jobwire.endpoint;

import dev.jobwire.Json;
import dev.jobwire.tables.Locks;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Optional;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The execution endpoint without a server. An authenticated application calls it for a {@code
 * POST} to {@code /jobwire/jobs/ID/execute} with its parameters {@code instance} and {@code owner},
 * to {@code /jobwire/jobs/execute} with its parameter {@code instance}, and to {@code
 * /jobwire/v1/OPERATION}, and for a {@code GET} of {@code /jobwire/scope}. It refuses a {@code POST}
 * of another type than application/json, which a page of another origin could send.
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

    /** Begins the answer of a list: 200, of the type application/x-ndjson. */
    public interface Answers {
        /** Returns the stream of its lines. */
        OutputStream begin() throws IOException;
    }

    private final JobRunner runner;
    private final ListRequests lists;
    private final Operations operations;

    /**
     * Creates an endpoint. The runner runs its jobs. If the runner is a {@link JobOperator}, too, it
     * also changes jobs for operators.
     */
    public ExecutionEndpoint(JobRunner runner) {
        this.runner = runner;
        Optional<Changes> changes = runner instanceof JobOperator operator
                ? Optional.of(new Changes(operator))
                : Optional.empty();
        this.operations = new Operations((operation, arguments) ->
                changes.flatMap(it -> it.result(operation, arguments)));
        this.lists = new ListRequests(
                (job, lock, lease) -> runner.run(job, lock).map(ExecutedJob::fields));
    }

    /**
     * Runs a job like the other method, for an application that does not pass the owner on. A late
     * request of one node then runs a job that another node has locked meanwhile.
     *
     * @param instance the parameter {@code instance} of the request; null without one
     */
    public Answer execute(String job, String instance) {
        return execute(job, instance, null);
    }

    /**
     * Runs a job and returns the answer: 200 with its state, 400, 404 or 500. Never fails.
     *
     * @param instance the parameter {@code instance} of the request; null without one
     * @param owner the parameter {@code owner} of the request; null without one
     */
    public Answer execute(String job, String instance, String owner) {
        try {
            Optional<CallerLock> lock = CallerLock.named(instance, owner);
            if (lock.isEmpty()) {
                return CallerLock.named(instance).isEmpty()
                        ? error(400, "instance must be held, or left out: " + instance)
                        : error(400, "owner must begin with " + Locks.OURS + ", or be left out: "
                                + owner);
            }
            Optional<ExecutedJob> executed = runner.run(job, lock.get());
            return executed.map(became -> new Answer(200, became.json()))
                    .orElseGet(() -> error(404, "there is no executable job " + job
                            + (lock.get().needsLock() ? " that the node has locked" : "")));
        } catch (RuntimeException | LinkageError failed) {
            LOG.warn("job {} could not be executed", job, failed);
            return error(500, failed.toString());
        }
    }

    /**
     * Runs the jobs of a list, and writes a line for each as soon as it ends. Returns the error of
     * an invalid request, of which nothing was written; empty when all lines are written. Reads a
     * bounded part of the body, and does not close it. The last lines are written and not flushed:
     * the end of the answer sends them.
     *
     * @param body the body of the request, in UTF-8
     * @param instance the parameter {@code instance} of the request; null without one
     * @throws IOException if the caller has disconnected. Jobs that run continue
     */
    public Optional<Answer> executeAll(InputStream body, String instance, Answers answers)
            throws IOException {
        return lists.answer(body, instance, ListRequests.Extension.NONE, answers);
    }

    /**
     * Answers the operations {@code retry} and {@code delete}, by which operators change jobs, for a
     * {@code POST} to {@code /jobwire/v1/OPERATION}: 200 with the result, 400 for an invalid request,
     * 404 for another operation, 500 if the engine failed. Reads a bounded part of the body, and
     * does not close it. Never fails. {@link JobEndpoint} has these operations, too, and all others.
     *
     * @param body the body of the request, in UTF-8; null for none
     */
    public Answer operate(String operation, InputStream body) {
        return operations.answer(operation, body);
    }

    /**
     * Returns the jobs that this node of the engine runs, for a {@code GET} of {@code
     * /jobwire/scope}: {@code {"categories": ["red"]}}, or {@code {"categories": null}} for all.
     * The answer has {@code "instance": "held"} if the caller can hold the instances of its jobs.
     * Never fails.
     *
     * @param takesLists whether the application calls {@link #executeAll}. Then the answer has in
     *     {@code list} the maximum number of jobs of a list
     */
    public Answer scope(boolean takesLists) {
        return scope(takesLists, false);
    }

    /**
     * Returns the same for an application that also serves the operations.
     *
     * @param takesRunLists whether the application calls {@link JobEndpoint#runList}. Then the
     *     answer has in {@code run_list} the maximum number of jobs of such a list
     */
    public Answer scope(boolean takesLists, boolean takesRunLists) {
        try {
            String categories = runner.categories()
                    .map(names -> names.stream()
                            .map(Json::quoted)
                            .collect(Collectors.joining(",", "[", "]")))
                    .orElse("null");
            String instance = runner.takesHeldInstances() ? ",\"instance\":\"held\"" : "";
            return new Answer(200, "{\"categories\":" + categories + instance
                    + (takesLists ? ",\"list\":" + Arguments.MOST : "")
                    + (takesRunLists ? ",\"run_list\":" + Arguments.MOST : "") + "}");
        } catch (RuntimeException failed) {
            LOG.warn("the categories of the engine could not be read", failed);
            return error(500, failed.toString());
        }
    }

    static Answer error(int status, String message) {
        return new Answer(status, "{\"message\":" + Json.quoted(message) + "}");
    }
}
