package shop;

import java.util.UUID;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** Creates jobs in the caller's transaction, and hints them after its commit. */
@Component
public class Jobs {
    private static final String CREATE =
            "SELECT id, lane FROM jobwire.create_job_hint(type => ?, payload => ?::json, process_instance => ?)";

    private final JdbcClient database;
    private final Hints hints;

    Jobs(JdbcClient database, Hints hints) {
        this.database = database;
        this.hints = hints;
    }

    @Transactional(propagation = Propagation.MANDATORY)
    public Job create(String type, String payload, String instance) {
        Job job =
                database.sql(CREATE)
                        .params(type, payload, instance)
                        .query((row, n) -> new Job(row.getObject("id", UUID.class), row.getString("lane"), instance))
                        .single();
        TransactionSynchronizationManager.registerSynchronization(
                new TransactionSynchronization() {
                    @Override
                    public void afterCommit() {
                        hints.send(job);
                    }
                });
        return job;
    }
}
