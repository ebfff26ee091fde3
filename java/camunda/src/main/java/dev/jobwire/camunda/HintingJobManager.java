package dev.jobwire.camunda;

import dev.jobwire.hints.HintPublisher;
import java.util.Date;
import org.camunda.bpm.engine.impl.cfg.TransactionState;
import org.camunda.bpm.engine.impl.context.Context;
import org.camunda.bpm.engine.impl.persistence.entity.JobEntity;
import org.camunda.bpm.engine.impl.persistence.entity.JobManager;

/** Camunda's job manager. It also publishes the hint of each new job after its commit. */
final class HintingJobManager extends JobManager {
    private final HintPublisher hints;

    HintingJobManager(HintPublisher hints) {
        this.hints = hints;
    }

    @Override
    public void insertJob(JobEntity job) {
        super.insertJob(job);
        Context.getCommandContext()
                .getTransactionContext()
                .addTransactionListener(TransactionState.COMMITTED, context -> committed(job));
    }

    private void committed(JobEntity job) {
        // A locked job belongs to the engine's own executor. A job that is suspended or has no
        // attempts left is not ready.
        if (job.getLockOwner() != null || job.isSuspended() || job.getRetries() <= 0) {
            return;
        }
        Date due = job.getDuedate();
        if (due == null || due.getTime() <= System.currentTimeMillis()) {
            hints.ready(job.getId(), job.getProcessInstanceId());
        } else {
            hints.timer(due);
        }
    }
}
