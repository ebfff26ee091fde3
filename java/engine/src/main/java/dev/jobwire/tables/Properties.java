package dev.jobwire.tables;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import java.util.Optional;

/**
 * Jobwire's rows in the engine's table of properties, {@code ACT_GE_PROPERTY}. A row has a name, a
 * text of at most 300 characters and a revision. Changes compare and set the revision.
 */
final class Properties {
    /** The beginning of the names of Jobwire's rows. */
    static final String OURS = "jobwire.";

    /** A row. */
    record Property(String name, String value, int revision) {}

    private final EngineTables tables;
    private final String table;

    Properties(EngineTables tables) {
        this.tables = tables;
        this.table = tables.table("ACT_GE_PROPERTY");
    }

    Optional<Property> get(Connection connection, String name) throws SQLException {
        String sql = "SELECT NAME_, VALUE_, REV_ FROM " + table + " WHERE NAME_ = ?";
        return tables.query(connection, sql, List.of(name), 1, Properties::read).stream()
                .findFirst();
    }

    /** Returns the rows whose names begin with this text, in the order of their names. */
    List<Property> under(Connection connection, String beginning, int limit) throws SQLException {
        String sql = "SELECT NAME_, VALUE_, REV_ FROM " + table
                + " WHERE NAME_ LIKE ? ORDER BY NAME_";
        return tables.query(connection, sql, List.of(beginning + "%"), limit, Properties::read);
    }

    private static Property read(java.sql.ResultSet row) throws SQLException {
        return new Property(row.getString(1), row.getString(2), row.getInt(3));
    }

    /** Changes a row that was read. Returns false if another transaction has changed it since. */
    boolean set(Connection connection, Property read, String value) throws SQLException {
        String sql = "UPDATE " + table + " SET VALUE_ = ?, REV_ = ? WHERE NAME_ = ? AND REV_ = ?";
        int next = read.revision() == Integer.MAX_VALUE ? 1 : read.revision() + 1;
        return tables.update(connection, sql, value, next, read.name(), read.revision()) == 1;
    }

    /** Creates a row. Returns false if the row exists. */
    boolean create(String name, String value) {
        try {
            return tables.transaction(connection -> get(connection, name).isEmpty()
                    && tables.update(
                            connection,
                            "INSERT INTO " + table + " (NAME_, VALUE_, REV_) VALUES (?, ?, 1)",
                            name, value) == 1);
        } catch (TablesException failed) {
            // Another transaction has created it between the two statements.
            if (tables.transaction(connection -> get(connection, name)).isPresent()) {
                return false;
            }
            throw failed;
        }
    }

    int remove(Connection connection, String name) throws SQLException {
        return tables.update(connection, "DELETE FROM " + table + " WHERE NAME_ = ?", name);
    }
}
