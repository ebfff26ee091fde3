package dev.jobwire.endpoint;

import dev.jobwire.endpoint.Arguments.BadRequest;
import dev.jobwire.tables.JobRow;
import dev.jobwire.tables.KeptConnection;
import dev.jobwire.tables.Locks;
import dev.jobwire.tables.LockTerms;
import dev.jobwire.tables.Settlement;
import java.io.IOException;
import java.io.InputStream;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * The whole contract of the endpoint, without a server. Nodes without access to the engine's
 * database lock, run and rescue its jobs over it. An application calls it for a {@code POST} of
 * {@code /jobwire/v1/OPERATION}, after its authentication. docs/reference/engine-endpoint.md
 * describes each operation.
 */
public final class JobEndpoint implements AutoCloseable {
    /** The longest body of a request, in characters. */
    public static final int LONGEST_BODY = Body.LONGEST;
    static final long LONGEST_LEASE = 24 * 3_600_000L;
    private static final long MOST_FENCES = Long.MAX_VALUE / 2;

    private final JobEngine engine;
    private final Locks locks;
    private final Settlement settlement;
    private final RunningJobs running;
    private final LeaderOperations leading;
    private final OperatorOperations operating;
    private final Operations operations;
    private final ListRequests lists;

    /** Creates an endpoint that locks, runs and rescues the jobs of this engine. */
    public JobEndpoint(JobEngine engine) {
        this.engine = engine;
        this.locks = new Locks(engine.tables());
        this.settlement = new Settlement(engine.tables());
        this.running = new RunningJobs(locks, new KeptConnection(engine.tables()));
        this.leading = new LeaderOperations(engine);
        this.operating = new OperatorOperations(engine);
        Changes changes = new Changes(engine);
        this.operations = new Operations((operation, arguments) -> result(operation, arguments)
                .or(() -> leading.result(operation, arguments))
                .or(() -> operating.result(operation, arguments))
                .or(() -> changes.result(operation, arguments)));
        this.lists = new ListRequests(
                (job, lock, lease) -> Optional.of(run(job, lock.owner(), lease)));
    }

    /**
     * Answers an operation, like the other method. Reads a bounded part of the body, and does not
     * close it.
     *
     * @param body the body of the request, in UTF-8; null for none
     */
    public ExecutionEndpoint.Answer answer(String operation, InputStream body) {
        return operations.answer(operation, body);
    }

    /**
     * Answers an operation: 200 with its result, 400 for an invalid request, 404 for an unknown
     * operation, 500 if the engine or its database failed. Never fails.
     */
    public ExecutionEndpoint.Answer answer(String operation, String body) {
        return operations.answer(operation, body);
    }

    /**
     * Runs the jobs of a list as the operation {@code run}, for a {@code POST} of {@code
     * /jobwire/v1/run-list}. Writes a line for each job as soon as it ends. Returns the error of an
     * invalid request, of which nothing was written; empty when all lines are written. Reads a
     * bounded part of the body, and does not close it. The last lines are written and not flushed:
     * the end of the answer sends them.
     *
     * @param body the body of the request, in UTF-8
     * @throws IOException if the caller has disconnected. Jobs that run continue
     */
    public Optional<ExecutionEndpoint.Answer> runList(
            InputStream body, ExecutionEndpoint.Answers answers) throws IOException {
        return lists.answer(body, null, ListRequests.Extension.BY_LEASE, answers);
    }

    private Optional<Object> result(String operation, Arguments arguments) {
        return Optional.ofNullable(switch (operation) {
            case "lock" -> lock(arguments);
            case "run" -> run(arguments);
            case "settle" -> settle(arguments);
            case "renew" -> locks.renew(
                    arguments.objects("held").stream().map(JobEndpoint::held).toList(),
                    arguments.number("lease", 1, LONGEST_LEASE));
            case "held" -> Map.of("jobs", rows(locks.heldBy(
                    arguments.node(),
                    arguments.texts("known"),
                    arguments.number("lease", 1, LONGEST_LEASE))));
            default -> null;
        });
    }

    private static LockTerms terms(Arguments arguments) {
        return new LockTerms(
                arguments.node(),
                arguments.number("fence", 0, MOST_FENCES),
                arguments.number("lease", 1, LONGEST_LEASE),
                arguments.optionalTexts("tenants"),
                arguments.optionalTexts("categories"));
    }

    private Object lock(Arguments arguments) {
        List<Locks.Wanted> wanted = arguments.objects("jobs").stream()
                .map(job -> new Locks.Wanted(job.text("id"), job.optional("instance")))
                .toList();
        Locks.Locked locked = locks.lock(wanted, terms(arguments));
        return Map.of(
                "jobs", rows(locked.jobs()),
                "refused", locked.refused().stream().map(JobEndpoint::refused).toList());
    }

    private static Map<String, Object> refused(Locks.Refused refused) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("id", refused.id());
        fields.put("why", refused.why());
        if (refused.job() != null) {
            fields.put("job", refused.job().fields());
        }
        return fields;
    }

    private Object run(Arguments arguments) {
        return run(
                arguments.text("id"),
                owner(arguments),
                arguments.number("lease", 1, LONGEST_LEASE));
    }

    /** Runs a job under its caller's lock. */
    private Map<String, Object> run(String job, String owner, long lease) {
        if (!running.enter(job, owner, lease)) {
            return Map.of("state", "running");
        }
        try {
            if (!locks.extend(job, owner, lease)) {
                return Map.of("state", "not held");
            }
            return engine.run(job, CallerLock.of(owner)).map(ExecutedJob::fields)
                    .orElseGet(() -> Map.of("state", "not held"));
        } finally {
            running.leave(owner);
        }
    }

    private Object settle(Arguments arguments) {
        List<Settlement.Ending> endings = arguments.objects("held").stream()
                .map(lock -> new Settlement.Ending(held(lock), lock.flag("unanswered")))
                .toList();
        Arguments take = arguments.optionalObject("take");
        Settlement.Settled settled =
                settlement.settle(endings, take == null ? null : terms(take));
        return Map.of(
                "fates", settled.fates().stream().map(JobEndpoint::fate).toList(),
                "next", rows(settled.next()),
                "ready", rows(settled.ready()));
    }

    private static Map<String, Object> fate(Settlement.Fate fate) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("id", fate.id());
        fields.put("fate", fate.fate());
        if (fate.job() != null && fate.job().due() != null) {
            fields.put("due", JobRow.millis(fate.job().due()));
        }
        return fields;
    }

    private static Locks.Held held(Arguments lock) {
        return new Locks.Held(lock.text("id"), owner(lock), lock.optional("instance"));
    }

    /**
     * Only the locks of nodes are run, extended and ended. The locks of the engine itself are not.
     */
    private static String owner(Arguments arguments) {
        String owner = arguments.text("owner");
        if (!Locks.isOurs(owner)) {
            throw new BadRequest("`owner` must begin with " + Locks.OURS);
        }
        return owner;
    }

    /** Returns many jobs for a leader. It does not need their messages. */
    static List<Map<String, Object>> brief(List<JobRow> jobs) {
        return rows(jobs.stream().map(job -> job.withMessage(0)).toList());
    }

    static List<Map<String, Object>> rows(List<JobRow> jobs) {
        return jobs.stream().map(JobRow::fields).toList();
    }

    /** Ends the renewals. Executions that are under way continue. */
    @Override
    public void close() {
        running.close();
    }
}
