package dev.jobwire.endpoint;

import dev.jobwire.Json;
import dev.jobwire.tables.Locks;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The execution endpoint without a server. An authenticated application calls it for a {@code
 * POST} to {@code /jobwire/jobs/ID/execute} or {@code /jobwire/jobs/execute}, with its parameter
 * {@code instance}, and for a {@code GET} of {@code /jobwire/scope}.
 */
public final class ExecutionEndpoint {
    /** Maximum length of the message of an error in a list. */
    private static final int MESSAGE_CHARACTERS = 1_000;

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

    /** Maximum number of jobs of a node that run at once. */
    private static final long MOST_AT_ONCE = 1_000;
    private static final long LONGEST_WAIT = 60_000;
    private static final long MOST_FENCES = Long.MAX_VALUE / 2;

    private final JobRunner runner;
    private final JobLists lists;

    /** Creates an endpoint. The runner runs its jobs. */
    public ExecutionEndpoint(JobRunner runner) {
        this.runner = runner;
        this.lists = new JobLists(new JobLists.Work() {
            @Override
            public String run(String job, CallerLock lock) {
                return line(job, lock);
            }

            @Override
            public String notBegun(String job) {
                return Json.of(Map.of("job", job, "status", 200, "state", "not begun"));
            }

            @Override
            public String withoutAnswer(String job) {
                return Json.of(Map.of("job", job, "status", 500, "message", "the execution failed"));
            }
        });
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
     * Runs the jobs of a list, and writes a line for each as soon as it ends. Returns the error of
     * an invalid request, of which nothing was written; empty when all lines are written. Reads a
     * bounded part of the body, and does not close it.
     *
     * @param body the body of the request, in UTF-8
     * @param instance the parameter {@code instance} of the request; null without one
     * @throws IOException if the caller has disconnected. Jobs that run continue
     */
    public Optional<Answer> executeAll(InputStream body, String instance, Answers answers)
            throws IOException {
        JobLists.JobList list;
        try {
            list = list(Arguments.of(Body.text(body)), CallerLock.named(instance));
        } catch (Arguments.BadRequest bad) {
            return Optional.of(error(400, bad.getMessage()));
        }
        lists.run(list, answers.begin());
        return Optional.empty();
    }

    private static JobLists.JobList list(Arguments arguments, Optional<CallerLock> lock) {
        boolean holds = lock.map(CallerLock::holdsInstance).orElseThrow(
                () -> new Arguments.BadRequest("instance must be held, or left out"));
        String node = arguments.node();
        return new JobLists.JobList(
                node,
                (int) arguments.number("at_once", 1, MOST_AT_ONCE),
                arguments.number("within", 1, LONGEST_WAIT),
                arguments.objects("jobs").stream()
                        .map(job -> new JobLists.Locked(job.text("id"), new CallerLock(holds,
                                Locks.OURS + node + ":" + job.number("fence", 0, MOST_FENCES))))
                        .toList());
    }

    /** Cuts a message: a line with a document in it would be too long for the caller. */
    private static String cut(String message) {
        return message.length() <= MESSAGE_CHARACTERS ? message : message.substring(0, MESSAGE_CHARACTERS);
    }

    /** Runs a job of a list and returns its line. */
    private String line(String job, CallerLock lock) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("job", job);
        long began = System.nanoTime();
        try {
            Optional<ExecutedJob> executed = runner.run(job, lock);
            line.put("status", executed.isPresent() ? 200 : 404);
            executed.ifPresentOrElse(
                    became -> line.putAll(became.fields()),
                    () -> line.put("message", "the node has locked no such executable job"));
        } catch (Throwable failed) {
            // Every job of a list gets its line, as each request gets its answer.
            line.put("status", 500);
            line.put("message", cut(failed.toString()));
            LOG.warn("job {} could not be executed", job, failed);
        }
        line.put("micros", (System.nanoTime() - began) / 1_000);
        return Json.of(line);
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
        try {
            String categories = runner.categories()
                    .map(names -> names.stream()
                            .map(Json::quoted)
                            .collect(Collectors.joining(",", "[", "]")))
                    .orElse("null");
            String instance = runner.takesHeldInstances() ? ",\"instance\":\"held\"" : "";
            return new Answer(200, "{\"categories\":" + categories + instance
                    + (takesLists ? ",\"list\":" + Arguments.MOST : "") + "}");
        } catch (RuntimeException failed) {
            LOG.warn("the categories of the engine could not be read", failed);
            return error(500, failed.toString());
        }
    }

    private static Answer error(int status, String message) {
        return new Answer(status, "{\"message\":" + Json.quoted(message) + "}");
    }
}
