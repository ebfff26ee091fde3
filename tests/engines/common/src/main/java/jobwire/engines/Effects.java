package jobwire.engines;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import javax.sql.DataSource;

/**
 * The table {@code jobwire_effect}: one row for each run of an activity. A row has a transaction of
 * its own, so it stays if the engine rolls back, and a test sees work that was done twice.
 */
final class Effects {
    private static final String CREATE = """
            CREATE TABLE IF NOT EXISTS jobwire_effect (
                instance varchar(64) NOT NULL,
                activity varchar(255) NOT NULL,
                attempt int NOT NULL,
                node varchar(64) NOT NULL,
                at %s,
                ended_at %s
            )
            """;
    private static final String INDEX =
            "CREATE INDEX IF NOT EXISTS jobwire_effect_instance ON jobwire_effect (instance)";

    /** Two runs at the same time may get the same attempt. */
    private static final String INSERT = """
            INSERT INTO jobwire_effect (instance, activity, attempt, node)
            SELECT ?, ?, count(*) + 1, ? FROM jobwire_effect WHERE instance = ? AND activity = ?
            RETURNING attempt
            """;

    private static final String END = """
            UPDATE jobwire_effect SET ended_at = CURRENT_TIMESTAMP(6)
            WHERE instance = ? AND activity = ? AND attempt = ? AND node = ?
            """;

    private final DataSource database;
    private final String node;

    Effects(DataSource database, String node) {
        this.database = database;
        this.node = node;
        try (Connection connection = database.getConnection();
                Statement statement = connection.createStatement()) {
            String product = connection.getMetaData().getDatabaseProductName();
            if (product.equals("PostgreSQL")) {
                // IF NOT EXISTS does not wait for another node that creates the table.
                statement.execute("SELECT pg_advisory_lock(hashtext('jobwire_effect'))");
                statement.execute(CREATE.formatted(
                        "timestamptz NOT NULL DEFAULT clock_timestamp()", "timestamptz"));
                statement.execute(INDEX);
                statement.execute("SELECT pg_advisory_unlock(hashtext('jobwire_effect'))");
            } else {
                statement.execute(CREATE.formatted(
                        "datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)", "datetime(6)"));
                statement.execute(INDEX);
            }
        } catch (SQLException error) {
            throw new IllegalStateException("the table of effects", error);
        }
    }

    /** Records the start of a run and returns its number, from 1. */
    int begin(String instance, String activity) {
        try (Connection connection = database.getConnection();
                PreparedStatement insert = connection.prepareStatement(INSERT)) {
            insert.setString(1, instance);
            insert.setString(2, activity);
            insert.setString(3, node);
            insert.setString(4, instance);
            insert.setString(5, activity);
            try (ResultSet row = insert.executeQuery()) {
                row.next();
                return row.getInt(1);
            }
        } catch (SQLException error) {
            throw new IllegalStateException("an effect of " + activity, error);
        }
    }

    /** Records the end of a run. */
    void end(String instance, String activity, int attempt) {
        try (Connection connection = database.getConnection();
                PreparedStatement end = connection.prepareStatement(END)) {
            end.setString(1, instance);
            end.setString(2, activity);
            end.setInt(3, attempt);
            end.setString(4, node);
            end.executeUpdate();
        } catch (SQLException error) {
            throw new IllegalStateException("the end of " + activity, error);
        }
    }
}
