package dev.jobwire.tables;

import dev.jobwire.tables.Properties.Property;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** The nodes that serve the engine: the rows {@code jobwire.node.ID}. */
public final class Members {
    private static final String NAMES = Properties.OURS + "node.";
    private static final int MOST = 1_024;
    /** Maximum length of the text of a node: the rest of the row holds the two times. */
    public static final int LONGEST = 260;

    /**
     * A node.
     *
     * @param about the node's text about itself
     */
    public record Member(String node, Instant started, Instant seen, String about) {}

    /** The nodes, and the time by the database's clock. */
    public record All(List<Member> members, Instant now) {}

    private final EngineTables tables;
    private final Properties properties;

    /** Creates the list in these tables. */
    public Members(EngineTables tables) {
        this.tables = tables;
        this.properties = new Properties(tables);
    }

    /** Writes the row of a node, which also shows that the node is alive. */
    public void join(String node, String about) {
        String name = NAMES + node;
        boolean isThere = tables.transaction(connection -> {
            Optional<Property> row = properties.get(connection, name);
            if (row.isEmpty()) {
                return false;
            }
            Member member = member(row.get());
            // A concurrent write was by the same node.
            properties.set(connection, row.get(),
                    text(member.started, tables.now(connection), about));
            return true;
        });
        if (!isThere) {
            Instant now = tables.transaction(tables::now);
            properties.create(name, text(now, now, about));
        }
    }

    private static String text(Instant started, Instant seen, String about) {
        return started.toEpochMilli() + "|" + seen.toEpochMilli() + "|" + about;
    }

    private static Member member(Property row) {
        String[] parts = (row.value() == null ? "" : row.value()).split("\\|", 3);
        String node = row.name().substring(NAMES.length());
        try {
            if (parts.length == 3) {
                return new Member(
                        node,
                        Instant.ofEpochMilli(Long.parseLong(parts[0])),
                        Instant.ofEpochMilli(Long.parseLong(parts[1])),
                        parts[2]);
            }
        } catch (NumberFormatException strange) {
            // Such a node counts as silent since 1970.
        }
        return new Member(node, Instant.EPOCH, Instant.EPOCH, "");
    }

    /** Removes the row of a node. */
    public void leave(String node) {
        tables.transaction(connection -> properties.remove(connection, NAMES + node));
    }

    /** Returns the nodes. */
    public All all() {
        return tables.transaction(connection -> {
            List<Member> members = new ArrayList<>();
            for (Property row : properties.under(connection, NAMES, MOST)) {
                members.add(member(row));
            }
            return new All(members, tables.now(connection));
        });
    }
}
