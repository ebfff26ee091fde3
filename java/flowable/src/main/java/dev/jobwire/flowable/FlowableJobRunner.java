package dev.jobwire.flowable;

import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.InstanceLock;
import dev.jobwire.endpoint.JobRunner;
import java.util.Optional;
import org.flowable.common.engine.impl.interceptor.CommandExecutor;
import org.flowable.engine.ProcessEngine;
import org.flowable.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.flowable.job.service.JobServiceConfiguration;
import org.flowable.job.service.impl.asyncexecutor.ExecuteAsyncRunnable;
import org.flowable.job.service.impl.asyncexecutor.JobExecutionObservation;
import org.flowable.job.service.impl.asyncexecutor.JobExecutionObservationProvider;
import org.flowable.job.service.impl.persistence.entity.AbstractRuntimeJobEntity;
import org.flowable.job.service.impl.persistence.entity.JobEntity;

/**
 * Runs a job as the engine's own executor does: it locks the instance of an exclusive job, runs the
 * job in one transaction, and handles a failure after that transaction has ended. The caller holds
 * the lock of the job's row. If it also holds that of the instance, this takes none.
 */
public final class FlowableJobRunner implements JobRunner {
    private final CommandExecutor commands;
    private final JobServiceConfiguration jobs;

    /** Jobs of this engine run. */
    public FlowableJobRunner(ProcessEngine engine) {
        ProcessEngineConfigurationImpl configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        this.commands = configuration.getCommandExecutor();
        this.jobs = configuration.getJobServiceConfiguration();
    }

    @Override
    public Optional<ExecutedJob> run(String id, InstanceLock lock) {
        JobEntity job = commands.execute(context -> jobs.getJobEntityManager().findById(id));
        if (job == null) {
            return Optional.empty();
        }
        Run run = new Run(job, jobs, lock);
        run.run();
        // A success has deleted the row, so there is nothing to look for.
        return Optional.of(run.isDone
                ? ExecutedJob.gone()
                : commands.execute(context -> became(id)));
    }

    private ExecutedJob became(String id) {
        AbstractRuntimeJobEntity job = jobs.getJobEntityManager().findById(id);
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

    /** One run of a job, which notes whether it succeeded. */
    private static final class Run extends ExecuteAsyncRunnable {
        private final InstanceLock lock;
        private boolean isDone = true;

        private Run(JobEntity job, JobServiceConfiguration jobs, InstanceLock lock) {
            super(job, jobs, jobs.getJobEntityManager(), null, JobExecutionObservationProvider.NOOP);
            this.lock = lock;
        }

        @Override
        protected void runInternally(JobExecutionObservation observation) {
            if (lock == InstanceLock.OF_CALLER) {
                executeJob(false, observation);
            } else {
                super.runInternally(observation);
            }
        }

        @Override
        protected void unlockJobIfNeeded() {
            if (lock == InstanceLock.OF_ENGINE) {
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
