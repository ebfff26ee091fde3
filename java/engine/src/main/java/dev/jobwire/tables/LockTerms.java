package dev.jobwire.tables;

import java.util.List;
import java.util.Set;

/**
 * The node that locks jobs, and the jobs that it may lock. The owner of a lock is {@code
 * jobwire:NODE:FENCE}. Each lock gets the next fence.
 */
public final class LockTerms {
    /** True if a job has no category. */
    static final String WITHOUT_CATEGORY = without("CATEGORY_");

    private final String node;
    private final long leaseMillis;
    private final Set<String> tenants;
    private final Set<String> categories;
    private long fence;

    /**
     * Creates terms.
     *
     * @param node the id of the node
     * @param fence the fence of the first lock
     * @param tenants the tenants whose jobs the node takes, besides jobs without a tenant; null for
     *     all
     * @param categories the same for categories
     */
    public LockTerms(
            String node,
            long fence,
            long leaseMillis,
            Set<String> tenants,
            Set<String> categories) {
        this.node = node;
        this.fence = fence;
        this.leaseMillis = leaseMillis;
        this.tenants = tenants;
        this.categories = categories;
    }

    String nextOwner() {
        return EngineTables.OURS + node + ":" + fence++;
    }

    long leaseMillis() {
        return leaseMillis;
    }

    boolean takesAll() {
        return tenants == null && categories == null;
    }

    boolean takes(JobRow job) {
        return job.isOfProcess()
                && isIn(tenants, job.tenant())
                && isIn(categories, job.category());
    }

    /**
     * Returns a condition that begins with {@code AND}, or nothing: the node may lock a job. Adds the
     * values of its parameters.
     */
    String condition(Columns has, List<String> values) {
        String ofTenants = isIn("TENANT_ID_", tenants, values);
        return has.category() ? ofTenants + isIn("CATEGORY_", categories, values) : ofTenants;
    }

    private static String isIn(String column, Set<String> names, List<String> values) {
        if (names == null) {
            return "";
        }
        if (names.isEmpty()) {
            return " AND (" + without(column) + ")";
        }
        values.addAll(names);
        return " AND (" + without(column) + " OR " + column + " IN "
                + EngineTables.places(names.size()) + ")";
    }

    private static String without(String column) {
        return column + " IS NULL OR " + column + " = ''";
    }

    private static boolean isIn(Set<String> names, String name) {
        return names == null || name == null || names.contains(name);
    }
}
