package jobwire.engines;

import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.endpoint.JobEndpoint;
import dev.jobwire.hints.DropReason;
import dev.jobwire.hints.HintPublisher;
import java.io.IOException;
import java.io.InputStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The requests of tests. Parameters are in the query.
 *
 * <table>
 * <caption>Requests</caption>
 * <tr><td>GET /test/health</td><td>200 when the engine works</td></tr>
 * <tr><td>GET /test/hints</td><td>the counts of hints; 404 without a broker</td></tr>
 * <tr><td>POST /test/start</td><td>starts {@code count} instances of {@code process}, each in a
 *   transaction of its own; other parameters become variables, numbers as numbers; answers the
 *   ids</td></tr>
 * <tr><td>POST /test/complete</td><td>completes the user tasks of {@code instance}</td></tr>
 * <tr><td>POST /test/release</td><td>lets the held activities of {@code instance} end</td></tr>
 * <tr><td>POST /test/suspend, /test/activate</td><td>{@code instance}</td></tr>
 * <tr><td>POST /test/deploy</td><td>deploys {@code process}</td></tr>
 * <tr><td>POST /jobwire/jobs/ID/execute, POST /jobwire/jobs/execute, POST /jobwire/v1/OPERATION,
 *   POST /jobwire/v1/run-list, GET /jobwire/scope</td>
 *   <td>the execution endpoint, on engines without Spring</td></tr>
 * </table>
 */
public final class Requests {
    private static final String JOBS = "/jobwire/jobs/";
    private static final String EXECUTE = "/execute";
    private static final String LIST = JOBS + "execute";
    private static final String OPERATIONS = "/jobwire/v1/";
    private static final String RUN_LIST = OPERATIONS + "run-list";

    private final Engine engine;
    private final Work work;
    private final Settings settings;
    private final Optional<HintPublisher> hints;
    private final Optional<ExecutionEndpoint> endpoint;
    private final Optional<JobEndpoint> jobs;

    /** Deploys the processes. Spring serves the endpoint itself. */
    public Requests(
            Engine engine,
            Work work,
            Settings settings,
            Optional<HintPublisher> hints,
            Optional<ExecutionEndpoint> endpoint) {
        this(engine, work, settings, hints, endpoint, Optional.empty());
    }

    /** Deploys the processes. Also serves all operations of the endpoint. */
    public Requests(
            Engine engine,
            Work work,
            Settings settings,
            Optional<HintPublisher> hints,
            Optional<ExecutionEndpoint> endpoint,
            Optional<JobEndpoint> jobs) {
        this.engine = engine;
        this.work = work;
        this.settings = settings;
        this.hints = hints;
        this.endpoint = endpoint;
        this.jobs = jobs;
        Processes.AT_START.forEach(engine::deploy);
    }

    /** Answers a request; a failure of the engine becomes an answer with status 500. */
    public Answer answer(String method, String path, Map<String, String> parameters) {
        try {
            if (method.equals("GET") && path.equals("/test/health")) {
                return Answer.ok("{\"engine\":" + Answer.quoted(engine.name())
                        + ",\"executor\":" + Answer.quoted(settings.executor().name()) + "}");
            }
            if (method.equals("GET") && path.equals("/test/hints")) {
                return hints.map(Requests::counts).map(Answer::ok)
                        .orElseGet(() -> Answer.error(404, "the engine publishes no hints"));
            }
            if (method.equals("GET") && path.equals("/jobwire/scope") && endpoint.isPresent()) {
                return answer(endpoint.get().scope(true, jobs.isPresent()));
            }
            if (!method.equals("POST")) {
                return Answer.error(405, method + " " + path + " is not supported");
            }
            if (path.startsWith(JOBS) && path.endsWith(EXECUTE)) {
                String job = path.substring(JOBS.length(), path.length() - EXECUTE.length());
                return endpoint.map(runs -> answer(runs.execute(job, parameters.get("instance"), parameters.get("owner"))))
                        .orElseGet(() -> Answer.error(404, "the engine has no endpoint"));
            }
            return Answer.ok(post(path, parameters));
        } catch (IllegalArgumentException error) {
            return Answer.error(400, error.toString());
        } catch (RuntimeException error) {
            return Answer.error(500, error.toString());
        }
    }

    /** Returns whether a request is about a list of jobs. */
    boolean isList(String method, String path) {
        return method.equals("POST")
                && ((path.equals(LIST) && endpoint.isPresent())
                        || (path.equals(RUN_LIST) && jobs.isPresent()));
    }

    /** Answers a list of jobs line by line. Returns the answer if the list is invalid. */
    Optional<Answer> answerList(
            String path, InputStream body, String instance, ExecutionEndpoint.Answers lines)
            throws IOException {
        return (path.equals(RUN_LIST)
                ? jobs.orElseThrow().runList(body, lines)
                : endpoint.orElseThrow().executeAll(body, instance, lines)).map(Requests::answer);
    }

    /** Answers an operation of the endpoint; empty if the request is another one. */
    Optional<Answer> operate(String method, String path, InputStream body) {
        if (!method.equals("POST") || !path.startsWith(OPERATIONS)) {
            return Optional.empty();
        }
        String operation = path.substring(OPERATIONS.length());
        return jobs.map(it -> it.answer(operation, body))
                .or(() -> endpoint.map(it -> it.operate(operation, body)))
                .map(Requests::answer);
    }

    private static Answer answer(ExecutionEndpoint.Answer answer) {
        return new Answer(answer.status(), answer.json());
    }

    private static String counts(HintPublisher hints) {
        String dropped = Stream.of(DropReason.values())
                .map(reason -> Answer.quoted(reason.label()) + ":"
                        + hints.counts().dropped(reason))
                .collect(Collectors.joining(",", "{", "}"));
        return "{\"published\":" + hints.counts().published()
                + ",\"timers\":" + hints.counts().timers()
                + ",\"waiting\":" + hints.waiting()
                + ",\"dropped\":" + dropped + "}";
    }

    private String post(String path, Map<String, String> parameters) {
        switch (path) {
            case "/test/start" -> {
                return start(parameters);
            }
            case "/test/complete" -> {
                return "{\"completed\":" + engine.completeTasks(instance(parameters)) + "}";
            }
            case "/test/release" -> work.release(instance(parameters));
            case "/test/suspend" -> engine.suspend(instance(parameters));
            case "/test/activate" -> engine.activate(instance(parameters));
            case "/test/deploy" -> deploy(required(parameters, "process"));
            default -> throw new IllegalArgumentException("there is no " + path);
        }
        return "{}";
    }

    /** Deploys one process at a time: the engine refuses the second of two equal ones. */
    private synchronized void deploy(String process) {
        engine.deploy(process);
    }

    private String start(Map<String, String> parameters) {
        Map<String, String> rest = new LinkedHashMap<>(parameters);
        String process = required(rest, "process");
        rest.remove("process");
        String count = rest.remove("count");
        Map<String, Object> variables = new LinkedHashMap<>();
        rest.forEach((name, value) -> variables.put(name, variable(value)));
        return IntStream.range(0, count == null ? 1 : Integer.parseInt(count))
                .mapToObj(number -> Answer.quoted(engine.start(process, variables)))
                .collect(Collectors.joining(",", "[", "]"));
    }

    private static Object variable(String value) {
        return value.matches("-?[0-9]{1,18}") ? (Object) Long.valueOf(value) : value;
    }

    private static String instance(Map<String, String> parameters) {
        return required(parameters, "instance");
    }

    private static String required(Map<String, String> parameters, String name) {
        String value = parameters.get(name);
        if (value == null) {
            throw new IllegalArgumentException("the parameter " + name + " is missing");
        }
        return value;
    }
}
