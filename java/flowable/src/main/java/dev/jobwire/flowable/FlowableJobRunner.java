package dev.jobwire.flowable;

import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.JobRunner;
import java.util.Collection;
import java.util.Optional;
import org.flowable.common.engine.impl.interceptor.CommandExecutor;
import org.flowable.engine.ProcessEngine;
import org.flowable.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.flowable.job.service.JobServiceConfiguration;
import org.flowable.job.service.impl.asyncexecutor.ExecuteAsyncRunnable;
import org.flowable.job.service.impl.asyncexecutor.JobExecutionObservationProvider;
import org.flowable.job.service.impl.persistence.entity.AbstractRuntimeJobEntity;
import org.flowable.job.service.impl.persistence.entity.JobEntity;

/**
 * Runs a job as the engine's own executor does: it locks the instance of an exclusive job, runs the
 * job in one transaction, and handles a failure after that transaction has ended. The caller holds
 * the lock of the job's row, and no lock of the instance.
 */
public final class FlowableJobRunner implements JobRunner {
    private final CommandExecutor commands;
    private final JobServiceConfiguration jobs;

    /** Creates a runner for the jobs of this engine. */
    public FlowableJobRunner(ProcessEngine engine) {
        ProcessEngineConfigurationImpl configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        this.commands = configuration.getCommandExecutor();
        this.jobs = configuration.getJobServiceConfiguration();
    }

    @Override
    public Optional<ExecutedJob> run(String id) {
        JobEntity job = commands.execute(context -> jobs.getJobEntityManager().findById(id));
        if (job == null) {
            return Optional.empty();
        }
        new ExecuteAsyncRunnable(
                job, jobs, jobs.getJobEntityManager(), null, JobExecutionObservationProvider.NOOP)
                .run();
        return Optional.of(commands.execute(context -> became(id)));
    }

    /** Returns the engine's enabled categories. */
    @Override
    public Optional<Collection<String>> categories() {
        return Optional.ofNullable(jobs.getEnabledJobCategories());
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
}
