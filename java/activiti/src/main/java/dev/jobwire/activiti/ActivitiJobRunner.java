package dev.jobwire.activiti;

import dev.jobwire.endpoint.CallerLock;
import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.JobRunner;
import java.util.List;
import java.util.Optional;
import org.activiti.engine.ManagementService;
import org.activiti.engine.ProcessEngine;
import org.activiti.engine.impl.asyncexecutor.ExecuteAsyncRunnable;
import org.activiti.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.activiti.engine.impl.cmd.ExecuteAsyncJobCmd;
import org.activiti.engine.impl.interceptor.CommandExecutor;
import org.activiti.engine.impl.persistence.entity.JobEntity;
import org.activiti.engine.runtime.Job;

/**
 * Runs a job as the engine's own executor does: it locks the instance of an exclusive job, runs the
 * job in one transaction, and handles a failure after that transaction has ended. The caller holds
 * the lock of the job's row. If it also holds that of the instance, this takes none. A job that
 * Activiti gives back has a new id.
 */
public final class ActivitiJobRunner implements JobRunner {
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
        // A success has deleted the row, so there is nothing to look for.
        return Optional.of(execution.hasFailed ? became(id) : ExecutedJob.gone());
    }

    /** Finds a job that the engine gave back: its id is new, its execution is the same. */
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

    private static ExecutedJob executed(ExecutedJob.State state, Job job) {
        return new ExecutedJob(state, job.getId(), job.getRetries(), job.getExceptionMessage());
    }

    /** One run of a job. Notes whether the engine gave the job back. */
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

        /** The row is compared with the caller's lock once more, in the transaction of the job. */
        @Override
        protected void executeJob() {
            if (lock.owner() == null && !lock.holdsInstance()) {
                super.executeJob();
                return;
            }
            try {
                isNotHeld = !commands.execute(context -> {
                    JobEntity loaded = context.getJobEntityManager().findById(jobId);
                    if (loaded == null || !lock.covers(loaded.getLockOwner())) {
                        return false;
                    }
                    new ExecuteAsyncJobCmd(jobId).execute(context);
                    return true;
                });
            } catch (Throwable failure) {
                // As the engine's executor, whatever the delegate has thrown.
                handleFailedJob(failure);
            }
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

        @Override
        protected void handleFailedJob(Throwable failure) {
            hasFailed = true;
            super.handleFailedJob(failure);
        }

        @Override
        protected void unacquireJob() {
            isGivenBack = true;
            super.unacquireJob();
        }
    }
}
