package dev.jobwire.endpoint;

import dev.jobwire.tables.DueTimers;
import dev.jobwire.tables.JobRow;
import dev.jobwire.tables.LeaderLease;
import dev.jobwire.tables.Members;
import dev.jobwire.tables.Release;
import dev.jobwire.tables.Rescue;
import dev.jobwire.tables.Sweep;
import dev.jobwire.tables.Timers;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** The operations of the leader, and the registration of nodes. */
final class LeaderOperations {
    private static final int MOST = 10_000;
    private static final long LONGEST_LEASE = 24 * 3_600_000L;

    private final JobEngine engine;
    private final LeaderLease lease;
    private final Members members;
    private final Rescue rescue;
    private final Sweep sweep;
    private final Timers timers;
    private final DueTimers dueTimers;

    LeaderOperations(JobEngine engine) {
        this.engine = engine;
        this.lease = new LeaderLease(engine.tables());
        this.members = new Members(engine.tables());
        this.rescue = new Rescue(engine.tables());
        this.sweep = new Sweep(engine.tables());
        this.timers = new Timers(engine.tables());
        this.dueTimers = new DueTimers(engine.tables());
    }

    Optional<Object> result(String operation, Arguments arguments) {
        return Optional.ofNullable(switch (operation) {
            case "lead" -> lead(arguments);
            case "resign" -> {
                lease.resign(arguments.node());
                yield Map.of();
            }
            case "join" -> {
                String about = arguments.text("about");
                if (about.length() > Members.LONGEST) {
                    throw new Arguments.BadRequest(
                            "`about` has more than " + Members.LONGEST + " characters");
                }
                members.join(arguments.node(), about);
                yield Map.of();
            }
            case "leave" -> {
                members.leave(arguments.node());
                yield Map.of();
            }
            case "nodes" -> nodes();
            case "timers" -> timers(arguments);
            case "orphans" -> orphans(arguments);
            case "rescue" -> rescue(arguments);
            case "backlog" -> backlog();
            case "waiting" -> waiting();
            case "release" -> {
                Release.Released released = new Release(engine.tables()).all();
                yield Map.of("released", released.released(), "left", released.left());
            }
            default -> null;
        });
    }

    private Object lead(Arguments arguments) {
        String transport = arguments.text("transport");
        if (!transport.matches("[a-z0-9-]{1,40}")) {
            throw new Arguments.BadRequest("`transport` must be a short name");
        }
        LeaderLease.Lead lead = lease.take(
                arguments.node(), transport, arguments.number("lease", 1, LONGEST_LEASE));
        return Map.of(
                "leads", lead.isOurs(),
                "term", lead.term(),
                "node", lead.node(),
                "transport", lead.transport(),
                "remaining", lead.remainingMillis(),
                "now", lead.now().toEpochMilli());
    }

    private Object nodes() {
        Members.All all = members.all();
        List<Map<String, Object>> nodes = all.members().stream()
                .map(member -> Map.<String, Object>of(
                        "node", member.node(),
                        "started", member.started().toEpochMilli(),
                        "seen", member.seen().toEpochMilli(),
                        "about", member.about()))
                .toList();
        return Map.of("nodes", nodes, "now", all.now().toEpochMilli());
    }

    private Object timers(Arguments arguments) {
        int most = (int) arguments.number("at_most", 1, MOST);
        Timers.Moved moved = engine.tables().columns().oneTable()
                ? dueTimers.report(most)
                : timers.move(most, engine::moveTimer);
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("ready", JobEndpoint.brief(moved.ready()));
        fields.put("next_due", JobRow.millis(moved.nextDue()));
        fields.put("now", moved.now().toEpochMilli());
        return fields;
    }

    private Object orphans(Arguments arguments) {
        Long before = arguments.optionalNumber("created_before");
        Sweep.Page page = sweep.orphans(
                arguments.optional("after"),
                before == null ? null : Instant.ofEpochMilli(before),
                (int) arguments.number("limit", 1, MOST));
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("jobs", JobEndpoint.brief(page.jobs()));
        fields.put("next", page.next());
        fields.put("now", page.now().toEpochMilli());
        return fields;
    }

    private Object rescue(Arguments arguments) {
        Rescue.Rescued rescued = rescue.rescue((int) arguments.number("at_most", 1, MOST));
        return Map.of(
                "jobs", JobEndpoint.brief(rescued.jobs()),
                "timers", rescued.timers(),
                "ready", JobEndpoint.brief(rescued.ready()));
    }

    private Object waiting() {
        List<Map<String, Object>> kinds = sweep.waiting().stream()
                .map(kind -> {
                    Map<String, Object> fields = new LinkedHashMap<>();
                    fields.put("handler", kind.handler());
                    fields.put("category", kind.category());
                    fields.put("tenant", kind.tenant());
                    fields.put("jobs", kind.jobs());
                    return fields;
                })
                .toList();
        return Map.of("kinds", kinds);
    }

    private Object backlog() {
        Sweep.Backlog backlog = sweep.backlog();
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("locked", backlog.locked());
        fields.put("executable", backlog.executable());
        fields.put("timers", backlog.timers());
        fields.put("dead_letters", backlog.deadLetters());
        fields.put("oldest", JobRow.millis(backlog.oldest()));
        fields.put("next_due", JobRow.millis(backlog.nextDue()));
        fields.put("now", backlog.now().toEpochMilli());
        return fields;
    }
}
