package dev.jobwire.tables;

import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;

/** A job, with the columns of its row. Null stands for an empty column. */
public record JobRow(
        JobTable table,
        String id,
        int revision,
        String type,
        String instance,
        String execution,
        String definition,
        String tenant,
        String handler,
        Integer retries,
        Instant due,
        String message,
        Instant created,
        String category,
        String element,
        String scope,
        String owner,
        Instant lockedUntil) {
    /** Reads a row with the columns of {@link JobTable#columns}. */
    static JobRow of(JobTable table, ResultSet row) throws SQLException {
        int retries = row.getInt("RETRIES_");
        boolean hasRetries = !row.wasNull();
        return new JobRow(
                table,
                row.getString("ID_"),
                row.getInt("REV_"),
                row.getString("TYPE_"),
                row.getString("PROCESS_INSTANCE_ID_"),
                row.getString("EXECUTION_ID_"),
                row.getString("PROC_DEF_ID_"),
                some(row.getString("TENANT_ID_")),
                row.getString("HANDLER_TYPE_"),
                hasRetries ? retries : null,
                time(row, "DUEDATE_"),
                row.getString("EXCEPTION_MSG_"),
                time(row, "CREATE_TIME_"),
                some(row.getString("CATEGORY_")),
                row.getString("ELEMENT_ID_"),
                row.getString("SCOPE_TYPE_"),
                row.getString("LOCK_OWNER_"),
                time(row, "LOCK_EXP_TIME_"));
    }

    static Instant time(ResultSet row, String column) throws SQLException {
        Timestamp time = row.getTimestamp(column);
        return time == null ? null : time.toInstant();
    }

    /** Engines write an empty text if there is no tenant. */
    private static String some(String text) {
        return text == null || text.isEmpty() ? null : text;
    }

    /** An owner without an expiry holds no lock, since nothing would end that lock. */
    boolean isLocked() {
        return lockedUntil != null;
    }

    /** Returns whether the job may run: it is due, not suspended and has an attempt left. */
    boolean isReady() {
        return table == JobTable.JOB;
    }

    /** Returns whether this is a job of a process. Other engines of Flowable share the tables. */
    boolean isOfProcess() {
        return scope == null || scope.equals("bpmn");
    }

    /** Returns this job with a lock and the next revision. After the greatest one comes 1. */
    JobRow locked(String owner, Instant until) {
        int next = revision == Integer.MAX_VALUE ? 1 : revision + 1;
        return new JobRow(
                table, id, next, type, instance, execution, definition, tenant, handler,
                retries, due, message, created, category, element, scope, owner, until);
    }

    /** Returns this job with at most this number of its message's characters; 0 for no message. */
    public JobRow withMessage(int most) {
        if (message == null || message.length() <= most) {
            return this;
        }
        // A surrogate pair is not cut in the middle.
        boolean isHalf = most > 0 && Character.isHighSurrogate(message.charAt(most - 1));
        String cut = most == 0 ? null : message.substring(0, isHalf ? most - 1 : most);
        return new JobRow(
                table, id, revision, type, instance, execution, definition, tenant, handler,
                retries, due, cut, created, category, element, scope, owner, lockedUntil);
    }

    /** Returns the answer's fields. */
    public Map<String, Object> fields() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("state", table.word());
        fields.put("id", id);
        fields.put("revision", revision);
        put(fields, "type", type);
        put(fields, "instance", instance);
        put(fields, "execution", execution);
        put(fields, "definition", definition);
        put(fields, "element", element);
        put(fields, "tenant", tenant);
        put(fields, "category", category);
        put(fields, "handler", handler);
        put(fields, "retries", retries);
        put(fields, "due", millis(due));
        put(fields, "created", millis(created));
        put(fields, "owner", owner);
        put(fields, "locked_until", millis(lockedUntil));
        put(fields, "message", message);
        return fields;
    }

    private static void put(Map<String, Object> fields, String name, Object value) {
        if (value != null) {
            fields.put(name, value);
        }
    }

    /** Returns a time in the format of the contract. */
    public static Long millis(Instant time) {
        return time == null ? null : time.toEpochMilli();
    }
}
