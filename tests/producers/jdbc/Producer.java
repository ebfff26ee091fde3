import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.OffsetDateTime;
import java.util.UUID;

/** Creates jobs in a transaction of JDBC. */
public class Producer {
    static final String INVOICE = """
            SELECT jobwire.create_job(type => 'send-invoice', payload => ?::json,
                process_instance => ?, retries => 5, tenant => 'acme')""";
    static final String REMINDER = """
            SELECT jobwire.create_job(type => 'send-reminder', payload => ?::json,
                due_at => ?, retry_policy => 'exponential(1s, 2, 1h)', tenant => 'acme')""";
    static final String SYNC = """
            SELECT id, created FROM jobwire.create_unique_job(type => 'sync-customer',
                unique_key => ?, payload => ?::json, tenant => 'acme')""";

    static void placeOrder(Connection db, int order, int customer) throws SQLException {
        try (PreparedStatement insert = db.prepareStatement("INSERT INTO orders (number) VALUES (?)")) {
            insert.setInt(1, order);
            insert.executeUpdate();
        }
        String payload = "{\"order\": " + order + "}";
        try (PreparedStatement create = db.prepareStatement(INVOICE)) {
            create.setString(1, payload);
            create.setString(2, "order-" + order);
            try (ResultSet row = create.executeQuery()) {
                row.next();
                System.out.println("order " + order + ": job " + row.getObject(1, UUID.class));
            }
        }
        try (PreparedStatement create = db.prepareStatement(REMINDER)) {
            create.setString(1, payload);
            create.setObject(2, OffsetDateTime.now().plusDays(3));
            create.execute();
        }
        try (PreparedStatement create = db.prepareStatement(SYNC)) {
            create.setString(1, "customer-" + customer);
            create.setString(2, "{\"customer\": " + customer + "}");
            try (ResultSet row = create.executeQuery()) {
                row.next();
                System.out.println("customer " + customer + ": job " + row.getObject("id", UUID.class)
                        + ", created: " + row.getBoolean("created"));
            }
        }
    }

    public static void main(String[] arguments) throws SQLException {
        try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            db.setAutoCommit(false);

            placeOrder(db, 17, 4);
            db.commit();

            placeOrder(db, 18, 5);
            db.rollback(); // neither the order nor its jobs exist

            placeOrder(db, 19, 4); // the job of customer 4 exists already
            db.commit();

            String refused = "SELECT jobwire.create_job(type => 'send-invoice', retries => 0)";
            try (PreparedStatement create = db.prepareStatement(refused)) {
                create.execute();
            } catch (SQLException error) {
                db.rollback();
                System.out.println("SQLSTATE " + error.getSQLState() + ": " + error.getMessage());
            }
        }
    }
}
