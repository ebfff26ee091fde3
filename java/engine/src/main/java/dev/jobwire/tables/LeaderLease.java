package dev.jobwire.tables;

import dev.jobwire.tables.Properties.Property;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Instant;
import java.util.Optional;

/**
 * The lease of the node that leads: the row {@code jobwire.leader}, with the term, the node, the
 * end of the lease and the node's transport. The term grows with every change of leader.
 */
public final class LeaderLease {
    private static final String NAME = Properties.OURS + "leader";
    /**
     * The number of leases of the requesting node after which an end of a lease is from a wrong
     * clock.
     */
    private static final long LONGEST = 10;
    private static final int MOST_TRIES = 3;

    /**
     * The leader.
     *
     * @param isOurs whether the requesting node leads
     * @param remainingMillis the remaining time of the leader's lease
     */
    public record Lead(
            boolean isOurs,
            long term,
            String node,
            String transport,
            long remainingMillis,
            Instant now) {}

    private record Value(long term, String node, long until, String transport) {
        static Value of(String text) {
            String[] parts = (text == null ? "" : text).split("\\|", 4);
            try {
                if (parts.length == 4) {
                    return new Value(
                            Long.parseLong(parts[0]), parts[1], Long.parseLong(parts[2]), parts[3]);
                }
            } catch (NumberFormatException strange) {
                // An unreadable row names no leader.
            }
            return new Value(0, "", 0, "");
        }

        String text() {
            return term + "|" + node + "|" + until + "|" + transport;
        }
    }

    private final EngineTables tables;
    private final Properties properties;

    /** Creates the lease in these tables. */
    public LeaderLease(EngineTables tables) {
        this.tables = tables;
        this.properties = new Properties(tables);
    }

    /** Leads if no other node does. */
    public Lead take(String node, String transport, long leaseMillis) {
        for (int tries = 0; ; tries++) {
            Optional<Lead> lead = tables.transaction(
                    connection -> taken(connection, node, transport, leaseMillis));
            if (lead.isPresent()) {
                return lead.get();
            }
            if (tries >= MOST_TRIES) {
                throw new IllegalStateException("the row " + NAME + " changes too often");
            }
            properties.create(NAME, new Value(0, "", 0, "").text());
        }
    }

    /** Returns empty if the row is missing or has changed meanwhile. */
    private Optional<Lead> taken(
            Connection connection, String node, String transport, long leaseMillis)
            throws SQLException {
        Optional<Property> row = properties.get(connection, NAME);
        if (row.isEmpty()) {
            return Optional.empty();
        }
        Instant now = tables.now(connection);
        long millis = now.toEpochMilli();
        Value value = Value.of(row.get().value());
        long remaining = value.until - millis;
        boolean isOurs = value.node.equals(node);
        boolean isOver = remaining <= 0 || remaining > Math.max(LONGEST * leaseMillis, 60_000);
        if (!isOurs && !isOver) {
            return Optional.of(new Lead(
                    false, value.term, value.node, value.transport, remaining, now));
        }
        long term = isOurs ? value.term : value.term + 1;
        Value next = new Value(term, node, millis + leaseMillis, transport);
        if (!properties.set(connection, row.get(), next.text())) {
            return Optional.empty();
        }
        return Optional.of(new Lead(true, term, node, transport, leaseMillis, now));
    }

    /** Ends the lease of a node. The row stays, so the term continues to grow. */
    public void resign(String node) {
        tables.transaction(connection -> {
            Optional<Property> row = properties.get(connection, NAME);
            if (row.isPresent()) {
                Value value = Value.of(row.get().value());
                if (value.node.equals(node)) {
                    Value over = new Value(value.term, node, 0, value.transport);
                    properties.set(connection, row.get(), over.text());
                }
            }
            return null;
        });
    }
}
