package shop;

import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

/** What your service does, and the job that shall follow: one transaction, so both or none. */
@Service
public class Orders {
    private final JdbcClient database;
    private final Jobs jobs;

    Orders(JdbcClient database, Jobs jobs) {
        this.database = database;
        this.jobs = jobs;
    }

    @Transactional
    public Job place(long number) {
        database.sql("INSERT INTO orders (number) VALUES (?)").param(number).update();
        Job job = jobs.create("noop", "{\"order\": " + number + "}", "order-" + number);
        if (number < 0) {
            // Rolls back: no order, no job, no hint.
            throw new IllegalArgumentException("order " + number + " can't be");
        }
        return job;
    }
}
