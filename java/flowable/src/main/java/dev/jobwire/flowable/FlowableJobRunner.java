package dev.jobwire.flowable;

import dev.jobwire.endpoint.CallerLock;
import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.JobOperator;
import dev.jobwire.endpoint.JobRunner;
import java.util.Collection;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import org.flowable.common.engine.impl.interceptor.CommandExecutor;
import org.flowable.common.engine.impl.tenant.CurrentTenant;
import org.flowable.engine.ManagementService;
import org.flowable.engine.ProcessEngine;
import org.flowable.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.flowable.job.service.JobServiceConfiguration;
import org.flowable.job.service.impl.asyncexecutor.ExecuteAsyncRunnable;
import org.flowable.job.service.impl.asyncexecutor.JobExecutionObservation;
import org.flowable.job.service.impl.asyncexecutor.JobExecutionObservationProvider;
import org.flowable.job.service.impl.cmd.ExecuteAsyncRunnableJobCmd;
import org.flowable.job.service.impl.nontx.NonTransactionalJobHandler;
import org.flowable.job.service.impl.persistence.entity.AbstractRuntimeJobEntity;
import org.flowable.job.service.impl.persistence.entity.JobEntity;
import org.flowable.job.service.impl.persistence.entity.JobEntityManager;

/**
 * Runs a job like the engine's own executor: it locks the instance of an exclusive job, runs the
 * job in one transaction, and handles a failure after the end of that transaction. The caller holds
 * the lock of the job's row. If the caller also holds the lock of the instance, the runner takes
 * none. The engine's management service makes the changes of operators.
 */
public final class FlowableJobRunner implements JobRunner, JobOperator {
    private final CommandExecutor commands;
    private final JobServiceConfiguration jobs;
    private final JobEntityManager entities;
    private final ManagementService management;

    /** Creates a runner for the jobs of this engine. */
    public FlowableJobRunner(ProcessEngine engine) {
        ProcessEngineConfigurationImpl configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        this.commands = configuration.getCommandExecutor();
        this.jobs = configuration.getJobServiceConfiguration();
        this.entities = jobs.getJobEntityManager();
        this.management = engine.getManagementService();
    }

    @Override
    public Optional<ExecutedJob> run(String id, CallerLock lock) {
        return lock.holdsInstance() ? runHeld(id, lock) : runLocking(id, lock);
    }

    private Optional<ExecutedJob> runLocking(String id, CallerLock lock) {
        JobEntity job = commands.execute(context -> covered(id, lock));
        return job == null ? Optional.empty() : outcome(new Run(job, jobs, lock), id);
    }

    private Optional<ExecutedJob> outcome(Run run, String id) {
        run.run();
        if (run.isNotHeld) {
            return Optional.empty();
        }
        return Optional.of(run.isDone ? ExecutedJob.gone() : lookedUp(id));
    }

    /** Loads a job in this transaction; null if it is gone, or is under another lock. */
    private JobEntity covered(String id, CallerLock lock) {
        JobEntity job = entities.findById(id);
        return job != null && lock.covers(job.getLockOwner()) ? job : null;
    }

    /** Finds the job and runs it in one transaction, since no lock is needed before. */
    private Optional<ExecutedJob> runHeld(String id, CallerLock lock) {
        AtomicReference<JobEntity> found = new AtomicReference<>();
        try {
            boolean isRun = commands.execute(context -> {
                JobEntity job = covered(id, lock);
                found.set(job);
                if (job == null || hasNoTransaction(job)) {
                    return false;
                }
                // ExecuteAsyncRunnable.run() does the same.
                CurrentTenant.getTenantContext().setTenantId(job.getTenantId());
                new ExecuteAsyncRunnableJobCmd(id, entities, jobs, false).execute(context);
                return true;
            });
            if (isRun) {
                return Optional.of(ExecutedJob.gone());
            }
        } catch (Throwable failure) {
            if (found.get() == null) {
                throw failure;
            }
            // The engine's executor also catches every error of a delegate.
            Run run = new Run(found.get(), jobs, lock);
            run.handleFailedJob(failure);
            return run.isNotHeld ? Optional.empty() : Optional.of(lookedUp(id));
        } finally {
            CurrentTenant.getTenantContext().clearTenantId();
        }
        JobEntity job = found.get();
        return job == null ? Optional.empty() : outcome(new Run(job, jobs, lock), id);
    }

    /**
     * The handler does a part of its work before the transaction of the job, for example over the
     * network.
     */
    private boolean hasNoTransaction(JobEntity job) {
        return jobs.getJobHandlers().get(job.getJobHandlerType())
                instanceof NonTransactionalJobHandler;
    }

    private ExecutedJob lookedUp(String id) {
        return commands.execute(context -> became(id));
    }

    @Override
    public boolean takesHeldInstances() {
        return true;
    }

    /** Returns the engine's enabled categories. */
    @Override
    public Optional<Collection<String>> categories() {
        return Optional.ofNullable(jobs.getEnabledJobCategories());
    }

    @Override
    public boolean retry(String job, int retries) {
        if (management.createTimerJobQuery().jobId(job).count() > 0) {
            management.moveTimerToExecutableJob(job);
            return true;
        }
        if (management.createDeadLetterJobQuery().jobId(job).count() > 0) {
            management.moveDeadLetterJobToExecutableJob(job, retries);
            return true;
        }
        return management.createJobQuery().jobId(job).count() > 0;
    }

    @Override
    public boolean delete(String job) {
        if (management.createJobQuery().jobId(job).count() > 0) {
            // Fails if the job is locked.
            management.deleteJob(job);
        } else if (management.createTimerJobQuery().jobId(job).count() > 0) {
            management.deleteTimerJob(job);
        } else if (management.createSuspendedJobQuery().jobId(job).count() > 0) {
            management.deleteSuspendedJob(job);
        } else if (management.createDeadLetterJobQuery().jobId(job).count() > 0) {
            management.deleteDeadLetterJob(job);
        } else {
            return false;
        }
        return true;
    }

    private ExecutedJob became(String id) {
        AbstractRuntimeJobEntity job = entities.findById(id);
        if (job != null) {
            return executed(ExecutedJob.State.JOB, job);
        }
        AbstractRuntimeJobEntity timer = jobs.getTimerJobEntityManager().findById(id);
        if (timer != null) {
            return executed(ExecutedJob.State.TIMER, timer);
        }
        AbstractRuntimeJobEntity suspended = jobs.getSuspendedJobEntityManager().findById(id);
        if (suspended != null) {
            return executed(ExecutedJob.State.SUSPENDED, suspended);
        }
        AbstractRuntimeJobEntity dead = jobs.getDeadLetterJobEntityManager().findById(id);
        return dead == null ? ExecutedJob.gone() : executed(ExecutedJob.State.DEAD_LETTER, dead);
    }

    private static ExecutedJob executed(ExecutedJob.State state, AbstractRuntimeJobEntity job) {
        return new ExecutedJob(state, job.getId(), job.getRetries(), job.getExceptionMessage());
    }

    /** One run of a job. Records whether it succeeded: then the row is deleted. */
    private static final class Run extends ExecuteAsyncRunnable {
        private final CallerLock lock;
        private boolean isDone = true;
        private boolean isNotHeld;

        /** If the caller holds the instance, no lock of it is taken or ended. */
        private Run(JobEntity job, JobServiceConfiguration jobs, CallerLock lock) {
            super(job, jobs, jobs.getJobEntityManager(), null, JobExecutionObservationProvider.NOOP);
            this.lock = lock;
        }

        /** Compares the row with the caller's lock again, in the transaction of the job. */
        @Override
        protected void handleTransactionalJob(boolean unlock) {
            if (!lock.needsLock()) {
                super.handleTransactionalJob(unlock);
                return;
            }
            isNotHeld = !jobServiceConfiguration.getCommandExecutor().execute(context -> {
                if (!isHeld()) {
                    return false;
                }
                new ExecuteAsyncRunnableJobCmd(
                        job.getId(), jobEntityManager, jobServiceConfiguration, unlock)
                        .execute(context);
                return true;
            });
            if (isNotHeld && unlock) {
                unlockJobIfNeeded();
            }
        }

        /** Loads the row in this transaction, and returns whether it is under the caller's lock. */
        private boolean isHeld() {
            JobEntity loaded = jobServiceConfiguration.getJobEntityManager()
                    .findById(job.getId());
            return loaded != null && lock.covers(loaded.getLockOwner());
        }

        @Override
        protected void runInternally(JobExecutionObservation observation) {
            if (lock.holdsInstance()) {
                executeJob(false, observation);
            } else {
                super.runInternally(observation);
            }
        }

        @Override
        protected void unlockJobIfNeeded() {
            if (!lock.holdsInstance()) {
                super.unlockJobIfNeeded();
            }
        }

        @Override
        protected void unacquireJob() {
            isDone = false;
            super.unacquireJob();
        }

        /**
         * Counts no failure on a job whose lock was lost: another node may run it, and the loss may
         * be the reason of this failure.
         */
        @Override
        protected void handleFailedJob(Throwable failure) {
            isDone = false;
            isNotHeld = lock.needsLock()
                    && !jobServiceConfiguration.getCommandExecutor().execute(context -> isHeld());
            if (isNotHeld) {
                unlockJobIfNeeded();
            } else {
                super.handleFailedJob(failure);
            }
        }
    }
}
