package dev.jobwire.activiti;

import dev.jobwire.endpoint.CallerLock;
import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.JobOperator;
import dev.jobwire.endpoint.JobRunner;
import java.util.List;
import java.util.Optional;
import org.activiti.engine.ManagementService;
import org.activiti.engine.ProcessEngine;
import org.activiti.engine.delegate.event.ActivitiEventType;
import org.activiti.engine.delegate.event.impl.ActivitiEventBuilder;
import org.activiti.engine.impl.asyncexecutor.ExecuteAsyncRunnable;
import org.activiti.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.activiti.engine.impl.cmd.ExecuteAsyncJobCmd;
import org.activiti.engine.impl.interceptor.CommandContext;
import org.activiti.engine.impl.interceptor.CommandExecutor;
import org.activiti.engine.impl.persistence.entity.JobEntity;
import org.activiti.engine.impl.persistence.entity.SuspendedJobEntity;
import org.activiti.engine.runtime.Job;

/**
 * Runs a job like the engine's own executor: it locks the instance of an exclusive job, runs the
 * job in one transaction, and handles a failure after the end of that transaction. The caller holds
 * the lock of the job's row. If the caller also holds the lock of the instance, the runner takes
 * none. Activiti returns a job under a new id. The engine's management service makes the changes of
 * operators.
 */
public final class ActivitiJobRunner implements JobRunner, JobOperator {
    private final ProcessEngineConfigurationImpl configuration;
    private final ManagementService jobs;

    /** Creates a runner for the jobs of this engine. */
    public ActivitiJobRunner(ProcessEngine engine) {
        this.configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        this.jobs = engine.getManagementService();
    }

    @Override
    public Optional<ExecutedJob> run(String id, CallerLock lock) {
        JobEntity job = configuration.getCommandExecutor()
                .execute(context -> context.getJobEntityManager().findById(id));
        if (job == null || !lock.covers(job.getLockOwner())) {
            return Optional.empty();
        }
        Execution execution = new Execution(job, configuration, lock);
        execution.run();
        if (execution.isNotHeld) {
            return Optional.empty();
        }
        if (execution.isGivenBack) {
            return Optional.of(givenBack(job.getExecutionId()));
        }
        // A success has deleted the row, so no search is needed.
        return Optional.of(execution.hasFailed ? became(id) : ExecutedJob.gone());
    }

    /** Finds a job that the engine returned: its id is new, its execution is the same. */
    private ExecutedJob givenBack(String execution) {
        List<Job> again = jobs.createJobQuery().executionId(execution).list();
        return again.isEmpty()
                ? ExecutedJob.gone()
                : executed(ExecutedJob.State.JOB, again.get(0));
    }

    private ExecutedJob became(String id) {
        Job job = jobs.createJobQuery().jobId(id).singleResult();
        if (job != null) {
            return executed(ExecutedJob.State.JOB, job);
        }
        Job timer = jobs.createTimerJobQuery().jobId(id).singleResult();
        if (timer != null) {
            return executed(ExecutedJob.State.TIMER, timer);
        }
        Job suspended = jobs.createSuspendedJobQuery().jobId(id).singleResult();
        if (suspended != null) {
            return executed(ExecutedJob.State.SUSPENDED, suspended);
        }
        Job dead = jobs.createDeadLetterJobQuery().jobId(id).singleResult();
        return dead == null ? ExecutedJob.gone() : executed(ExecutedJob.State.DEAD_LETTER, dead);
    }

    @Override
    public boolean retry(String job, int retries) {
        if (jobs.createTimerJobQuery().jobId(job).count() > 0) {
            jobs.moveTimerToExecutableJob(job);
            return true;
        }
        if (jobs.createDeadLetterJobQuery().jobId(job).count() > 0) {
            jobs.moveDeadLetterJobToExecutableJob(job, retries);
            return true;
        }
        return jobs.createJobQuery().jobId(job).count() > 0;
    }

    @Override
    public boolean delete(String job) {
        if (jobs.createJobQuery().jobId(job).count() > 0) {
            // Fails if the job is locked.
            jobs.deleteJob(job);
        } else if (jobs.createTimerJobQuery().jobId(job).count() > 0) {
            jobs.deleteTimerJob(job);
        } else if (jobs.createSuspendedJobQuery().jobId(job).count() > 0) {
            deleteSuspended(job);
        } else if (jobs.createDeadLetterJobQuery().jobId(job).count() > 0) {
            jobs.deleteDeadLetterJob(job);
        } else {
            return false;
        }
        return true;
    }

    /** Deletes a suspended job. The management service deletes all jobs but suspended ones. */
    private void deleteSuspended(String id) {
        configuration.getCommandExecutor().execute(context -> {
            SuspendedJobEntity job = context.getSuspendedJobEntityManager().findById(id);
            if (job != null) {
                if (context.getEventDispatcher().isEnabled()) {
                    context.getEventDispatcher().dispatchEvent(ActivitiEventBuilder
                            .createEntityEvent(ActivitiEventType.JOB_CANCELED, job));
                }
                context.getSuspendedJobEntityManager().delete(job);
            }
            return null;
        });
    }

    private static ExecutedJob executed(ExecutedJob.State state, Job job) {
        return new ExecutedJob(state, job.getId(), job.getRetries(), job.getExceptionMessage());
    }

    /** One run of a job. Records whether the engine returned the job. */
    private static final class Execution extends ExecuteAsyncRunnable {
        private final CallerLock lock;
        private final CommandExecutor commands;
        private boolean isNotHeld;
        private boolean isGivenBack;
        private boolean hasFailed;

        private Execution(
                JobEntity job, ProcessEngineConfigurationImpl configuration, CallerLock lock) {
            super(job, configuration);
            this.lock = lock;
            this.commands = configuration.getCommandExecutor();
        }

        /** Compares the row with the caller's lock again, in the transaction of the job. */
        @Override
        protected void executeJob() {
            if (!lock.needsLock()) {
                super.executeJob();
                return;
            }
            try {
                isNotHeld = !commands.execute(context -> {
                    if (!isHeld(context)) {
                        return false;
                    }
                    new ExecuteAsyncJobCmd(jobId).execute(context);
                    return true;
                });
            } catch (Throwable failure) {
                // The engine's executor also catches every error of a delegate.
                handleFailedJob(failure);
            }
        }

        /** Loads the row in this transaction, and returns whether it is under the caller's lock. */
        private boolean isHeld(CommandContext context) {
            JobEntity loaded = context.getJobEntityManager().findById(jobId);
            return loaded != null && lock.covers(loaded.getLockOwner());
        }

        @Override
        protected boolean lockJobIfNeeded() {
            return lock.holdsInstance() || super.lockJobIfNeeded();
        }

        @Override
        protected void unlockJobIfNeeded() {
            if (!lock.holdsInstance()) {
                super.unlockJobIfNeeded();
            }
        }

        /**
         * Counts no failure on a job whose lock was lost: another node may run it, and the loss may
         * be the reason of this failure.
         */
        @Override
        protected void handleFailedJob(Throwable failure) {
            hasFailed = true;
            isNotHeld = lock.needsLock() && !commands.execute(this::isHeld);
            if (!isNotHeld) {
                super.handleFailedJob(failure);
            }
        }

        @Override
        protected void unacquireJob() {
            isGivenBack = true;
            super.unacquireJob();
        }
    }
}
