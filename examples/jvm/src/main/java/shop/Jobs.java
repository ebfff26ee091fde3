package shop;

import java.util.UUID;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** Creates jobs in the transaction of whoever calls, and hints them when that has committed. */
@Component
public class Jobs {
    private static final String CREATE =
            "SELECT jobwire.create_job(type => ?, payload => ?::json, process_instance => ?)";
    // Of this transaction's own row: the rules of lanes chose it.
    private static final String LANE = "SELECT lane FROM jobwire.job WHERE id = ?";

    private final JdbcClient database;
    private final Hints hints;

    Jobs(JdbcClient database, Hints hints) {
        this.database = database;
        this.hints = hints;
    }

    @Transactional(propagation = Propagation.MANDATORY)
    public Job create(String type, String payload, String instance) {
        UUID id =
                database.sql(CREATE).params(type, payload, instance).query(UUID.class).single();
        String lane = database.sql(LANE).param(id).query(String.class).single();
        Job job = new Job(id, lane, instance);
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
