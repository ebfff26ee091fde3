package dev.jobwire.tables;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Jobs as operators see them. */
public final class JobList {
    /**
     * Which jobs.
     *
     * @param ids null for all; the other fields as well
     */
    public record Filter(Set<JobTable> in, List<String> ids, String instance, String handler) {}

    private final EngineTables tables;

    /** Lists the jobs of these tables. */
    public JobList(EngineTables tables) {
        this.tables = tables;
    }

    /** Returns jobs in the order of their tables and ids, at most this number of each table. */
    public List<JobRow> find(Filter filter, int limit) {
        return tables.transaction(connection -> {
            List<JobRow> found = new ArrayList<>();
            for (JobTable table : JobTable.values()) {
                if (filter.in().contains(table)) {
                    List<Object> parameters = new ArrayList<>();
                    String sql = "SELECT " + table.columns(tables.columns()) + " FROM "
                            + tables.table(table.table()) + " WHERE "
                            + tables.columns().ofProcesses("") + conditions(filter, parameters)
                            + " ORDER BY ID_";
                    found.addAll(tables.query(
                            connection, sql, parameters, limit, row -> JobRow.of(table, row)));
                }
            }
            return found;
        });
    }

    private static String conditions(Filter filter, List<Object> parameters) {
        StringBuilder sql = new StringBuilder();
        Map<String, String> texts = new java.util.LinkedHashMap<>();
        texts.put("PROCESS_INSTANCE_ID_", filter.instance());
        texts.put("HANDLER_TYPE_", filter.handler());
        texts.forEach((column, text) -> {
            if (text != null) {
                sql.append(" AND ").append(column).append(" = ?");
                parameters.add(text);
            }
        });
        if (filter.ids() != null) {
            sql.append(" AND ID_ IN ").append(EngineTables.places(filter.ids().size()));
            parameters.addAll(filter.ids().isEmpty() ? List.of("") : filter.ids());
        }
        return sql.toString();
    }
}
