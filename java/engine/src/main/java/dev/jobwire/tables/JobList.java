package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Lists of jobs for operators. */
public final class JobList {
    /** Maximum number of characters of a message in a list. */
    private static final int LONGEST_MESSAGE = 1_000;

    /**
     * A filter of jobs.
     *
     * @param ids null for all ids; null in another field also matches all
     * @param after the id after which the list begins in each table; null for the beginning
     */
    public record Filter(
            Set<JobTable> in, List<String> ids, String instance, String handler, String after) {
        Filter without(Set<String> found) {
            List<String> open = ids.stream().filter(id -> !found.contains(id)).toList();
            return new Filter(in, open, instance, handler, after);
        }
    }

    private final EngineTables tables;

    /** Creates lists of the jobs of these tables. */
    public JobList(EngineTables tables) {
        this.tables = tables;
    }

    /**
     * Returns jobs in the order of their tables and ids, at most this number of each table. With
     * ids, the list has each job once and with its whole message.
     */
    public List<JobRow> find(Filter filter, int limit) {
        return filter.ids() == null ? all(filter, limit) : byIds(filter, limit);
    }

    private List<JobRow> all(Filter filter, int limit) {
        return tables.transaction(connection -> {
            List<JobRow> found = new ArrayList<>();
            for (JobTable table : JobTable.values()) {
                if (filter.in().contains(table)) {
                    found.addAll(read(connection, table, filter, limit));
                }
            }
            return found.stream().map(job -> job.withMessage(LONGEST_MESSAGE)).toList();
        });
    }

    private List<JobRow> byIds(Filter filter, int limit) {
        return tables.transaction(connection -> {
            Map<String, JobRow> found = new LinkedHashMap<>();
            for (JobTable table : JobTable.followed()) {
                if (filter.in().contains(table)) {
                    Filter open = filter.without(found.keySet());
                    read(connection, table, open, limit).forEach(job -> found.put(job.id(), job));
                }
            }
            return List.copyOf(found.values());
        });
    }

    private List<JobRow> read(Connection connection, JobTable table, Filter filter, int limit)
            throws SQLException {
        if (filter.ids() != null && filter.ids().isEmpty()) {
            return List.of();
        }
        List<Object> parameters = new ArrayList<>();
        String sql = "SELECT " + table.columns(tables.columns()) + " FROM "
                + tables.table(table) + " WHERE "
                + table.condition(tables.columns(), "", tables.now(connection), parameters)
                + conditions(filter, parameters) + " ORDER BY ID_";
        return tables.query(connection, sql, parameters, limit, tables.reader(connection, table));
    }

    private static String conditions(Filter filter, List<Object> parameters) {
        StringBuilder sql = new StringBuilder();
        Map<String, String> texts = new LinkedHashMap<>();
        texts.put("PROCESS_INSTANCE_ID_", filter.instance());
        texts.put("HANDLER_TYPE_", filter.handler());
        texts.forEach((column, text) -> {
            if (text != null) {
                sql.append(" AND ").append(column).append(" = ?");
                parameters.add(text);
            }
        });
        if (filter.after() != null) {
            sql.append(" AND ID_ > ?");
            parameters.add(filter.after());
        }
        if (filter.ids() != null) {
            sql.append(" AND ID_ IN ").append(EngineTables.places(filter.ids().size()));
            parameters.addAll(filter.ids());
        }
        return sql.toString();
    }
}
