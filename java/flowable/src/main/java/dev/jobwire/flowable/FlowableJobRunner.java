package dev.jobwire.flowable;

import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.InstanceLock;
import dev.jobwire.endpoint.JobRunner;
import java.util.Collection;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import org.flowable.common.engine.impl.interceptor.CommandExecutor;
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
 * Runs a job as the engine's own executor does: it locks the instance of an exclusive job, runs the
 * job in one transaction, and handles a failure after that transaction has ended. The caller holds
 * the lock of the job's row. If it also holds that of the instance, this takes none.
 */
public final class FlowableJobRunner implements JobRunner {
    private final CommandExecutor commands;
    private final JobServiceConfiguration jobs;
    private final JobEntityManager entities;

    /** Creates a runner for the jobs of this engine. */
    public FlowableJobRunner(ProcessEngine engine) {
        ProcessEngineConfigurationImpl configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        this.commands = configuration.getCommandExecutor();
        this.jobs = configuration.getJobServiceConfiguration();
        this.entities = jobs.getJobEntityManager();
    }

    @Override
    public Optional<ExecutedJob> run(String id, InstanceLock lock) {
        return lock == InstanceLock.OF_CALLER ? runHeld(id) : runLocking(id);
    }

    private Optional<ExecutedJob> runLocking(String id) {
        JobEntity job = commands.execute(context -> entities.findById(id));
        if (job == null) {
            return Optional.empty();
        }
        Run run = new Run(job, jobs);
        run.run();
        return Optional.of(run.isDone ? ExecutedJob.gone() : lookedUp(id));
    }

    /** Finds the job and runs it in one transaction, since no lock comes before. */
    private Optional<ExecutedJob> runHeld(String id) {
        AtomicReference<JobEntity> found = new AtomicReference<>();
        boolean isRun;
        try {
            isRun = commands.execute(context -> {
                JobEntity job = entities.findById(id);
                found.set(job);
                if (job == null || hasNoTransaction(job)) {
                    return false;
                }
                new ExecuteAsyncRunnableJobCmd(id, entities, jobs, false).execute(context);
                return true;
            });
        } catch (Throwable failure) {
            if (found.get() == null) {
                throw failure;
            }
            // As the engine's executor, whatever the delegate has thrown.
            Run.held(found.get(), jobs).handleFailedJob(failure);
            return Optional.of(lookedUp(id));
        }
        JobEntity job = found.get();
        if (job == null) {
            return Optional.empty();
        }
        if (isRun) {
            return Optional.of(ExecutedJob.gone());
        }
        Run run = Run.held(job, jobs);
        run.run();
        return Optional.of(run.isDone ? ExecutedJob.gone() : lookedUp(id));
    }

    /** The handler works before the transaction of its job, for example over the network. */
    private boolean hasNoTransaction(JobEntity job) {
        return jobs.getJobHandlers().get(job.getJobHandlerType())
                instanceof NonTransactionalJobHandler;
    }

    private ExecutedJob lookedUp(String id) {
        return commands.execute(context -> became(id));
    }

    /** Returns the engine's enabled categories. */
    @Override
    public Optional<Collection<String>> categories() {
        return Optional.ofNullable(jobs.getEnabledJobCategories());
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

    /** One run of a job, which notes whether it succeeded: then its row is deleted. */
    private static final class Run extends ExecuteAsyncRunnable {
        private boolean isDone = true;
        private boolean isHeld;

        private Run(JobEntity job, JobServiceConfiguration jobs) {
            super(job, jobs, jobs.getJobEntityManager(), null, JobExecutionObservationProvider.NOOP);
        }

        /** A run in an instance that the caller holds: no lock of it is taken or ended. */
        private static Run held(JobEntity job, JobServiceConfiguration jobs) {
            Run run = new Run(job, jobs);
            run.isHeld = true;
            return run;
        }

        @Override
        protected void runInternally(JobExecutionObservation observation) {
            if (isHeld) {
                executeJob(false, observation);
            } else {
                super.runInternally(observation);
            }
        }

        @Override
        protected void unlockJobIfNeeded() {
            if (!isHeld) {
                super.unlockJobIfNeeded();
            }
        }

        @Override
        protected void unacquireJob() {
            isDone = false;
            super.unacquireJob();
        }

        @Override
        protected void handleFailedJob(Throwable failure) {
            isDone = false;
            super.handleFailedJob(failure);
        }
    }
}
