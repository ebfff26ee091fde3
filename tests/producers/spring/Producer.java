import java.sql.SQLException;
import java.time.OffsetDateTime;
import java.util.UUID;
import javax.sql.DataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;

/** Creates jobs in a transaction of Spring. */
@Configuration
@EnableTransactionManagement
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

    public static class Orders {
        private final JdbcTemplate jdbc;

        public Orders(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        @Transactional
        public void place(int order, int customer, boolean inStock) {
            jdbc.update("INSERT INTO orders (number) VALUES (?)", order);

            String payload = "{\"order\": " + order + "}";
            UUID invoice = jdbc.queryForObject(INVOICE, UUID.class, payload, "order-" + order);
            System.out.println("order " + order + ": job " + invoice);

            jdbc.queryForObject(REMINDER, UUID.class, payload, OffsetDateTime.now().plusDays(3));

            String sync = jdbc.queryForObject(SYNC,
                    (row, number) -> row.getString("id") + ", created: " + row.getBoolean("created"),
                    "customer-" + customer, "{\"customer\": " + customer + "}");
            System.out.println("customer " + customer + ": job " + sync);

            if (!inStock) {
                throw new IllegalStateException("out of stock"); // rolls back
            }
        }
    }

    @Bean
    DataSource dataSource() {
        return new DriverManagerDataSource(System.getenv("JDBC_URL"));
    }

    @Bean
    PlatformTransactionManager transactionManager(DataSource dataSource) {
        return new JdbcTransactionManager(dataSource);
    }

    @Bean
    JdbcTemplate jdbcTemplate(DataSource dataSource) {
        return new JdbcTemplate(dataSource);
    }

    @Bean
    Orders orders(JdbcTemplate jdbc) {
        return new Orders(jdbc);
    }

    public static void main(String[] arguments) {
        try (var context = new AnnotationConfigApplicationContext(Producer.class)) {
            Orders orders = context.getBean(Orders.class);
            orders.place(17, 4, true);
            try {
                orders.place(18, 5, false);
            } catch (IllegalStateException outOfStock) {
                // Neither the order nor its jobs exist.
            }
            orders.place(19, 4, true); // the job of customer 4 exists already

            try {
                context.getBean(JdbcTemplate.class).queryForObject(
                        "SELECT jobwire.create_job(type => 'send-invoice', retries => 0)", UUID.class);
            } catch (DataAccessException refused) {
                var cause = (SQLException) refused.getMostSpecificCause();
                System.out.println("SQLSTATE " + cause.getSQLState() + ": " + cause.getMessage());
            }
        }
    }
}
