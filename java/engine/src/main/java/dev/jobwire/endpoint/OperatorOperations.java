package dev.jobwire.endpoint;

import dev.jobwire.tables.Health;
import dev.jobwire.tables.JobList;
import dev.jobwire.tables.JobRow;
import dev.jobwire.tables.JobTable;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/** The operations that only read: the probe and queries of jobs. {@link Changes} has the changes. */
final class OperatorOperations {
    /** The version of the contract. */
    static final int CONTRACT = 1;
    private static final int MOST = 10_001;
    /** Maximum number of jobs of each state in an answer, for any limit. */
    private static final int MOST_FOUND = 1_000;

    private final JobEngine engine;
    private final Health health;
    private final JobList jobs;

    OperatorOperations(JobEngine engine) {
        this.engine = engine;
        this.health = new Health(engine.tables());
        this.jobs = new JobList(engine.tables());
    }

    Optional<Object> result(String operation, Arguments arguments) {
        return Optional.ofNullable(switch (operation) {
            case "probe" -> probe();
            case "clock" -> Map.of("now", health.now().toEpochMilli());
            case "find" -> find(arguments);
            default -> null;
        });
    }

    private Object probe() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("contract", CONTRACT);
        fields.put("engine", engine.name());
        fields.put("version", engine.version());
        fields.put("executor", engine.hasExecutor());
        fields.putAll(health.fields());
        return fields;
    }

    private Object find(Arguments arguments) {
        Set<JobTable> in = EnumSet.noneOf(JobTable.class);
        for (String word : arguments.texts("states")) {
            in.add(JobTable.of(word).orElseThrow(
                    () -> new Arguments.BadRequest("`states` has the unknown state " + word)));
        }
        Set<String> ids = arguments.optionalTexts("ids");
        if (ids != null && ids.size() > Arguments.MOST) {
            throw new Arguments.BadRequest("`ids` has more than " + Arguments.MOST + " entries");
        }
        JobList.Filter filter = new JobList.Filter(
                in.isEmpty() ? EnumSet.allOf(JobTable.class) : in,
                ids == null ? null : List.copyOf(ids),
                arguments.optional("instance"),
                arguments.optional("handler"),
                arguments.optional("after"));
        int limit = (int) arguments.number("limit", 1, MOST);
        int most = Math.min(limit, MOST_FOUND);
        List<JobRow> found = jobs.find(filter, most);
        boolean isCut = most < limit && found.stream()
                .collect(Collectors.groupingBy(JobRow::table, Collectors.counting()))
                .containsValue((long) most);
        return Map.of("jobs", JobEndpoint.rows(found), "cut", isCut);
    }
}
