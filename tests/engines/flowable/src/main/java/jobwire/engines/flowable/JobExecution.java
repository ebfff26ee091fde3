package jobwire.engines.flowable;

import java.util.Optional;
import jobwire.engines.Answer;
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
 * the lock of the job's row.
 */
final class JobExecution {
    private JobExecution() {}

    /** Returns what became of the job; empty if it is not executable. */
    static Optional<String> of(ProcessEngine engine, String id) {
        ProcessEngineConfigurationImpl configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        CommandExecutor commands = configuration.getCommandExecutor();
        JobServiceConfiguration jobs = configuration.getJobServiceConfiguration();
        JobEntity job = commands.execute(context -> jobs.getJobEntityManager().findById(id));
        if (job == null) {
            return Optional.empty();
        }
        new ExecuteAsyncRunnable(
                job, jobs, jobs.getJobEntityManager(), null, JobExecutionObservationProvider.NOOP)
                .run();
        return Optional.of(commands.execute(context -> became(jobs, id)));
    }

    private static String became(JobServiceConfiguration jobs, String id) {
        JobEntity job = jobs.getJobEntityManager().findById(id);
        if (job != null) {
            return state("job", job);
        }
        AbstractRuntimeJobEntity timer = jobs.getTimerJobEntityManager().findById(id);
        if (timer != null) {
            return state("timer", timer);
        }
        AbstractRuntimeJobEntity suspended = jobs.getSuspendedJobEntityManager().findById(id);
        if (suspended != null) {
            return state("suspended", suspended);
        }
        AbstractRuntimeJobEntity dead = jobs.getDeadLetterJobEntityManager().findById(id);
        return dead == null ? "{\"state\":\"gone\"}" : state("dead letter", dead);
    }

    private static String state(String name, AbstractRuntimeJobEntity job) {
        String message = job.getExceptionMessage();
        return "{\"state\":" + Answer.quoted(name)
                + ",\"id\":" + Answer.quoted(job.getId())
                + ",\"retries\":" + job.getRetries()
                + ",\"message\":" + (message == null ? "null" : Answer.quoted(message)) + "}";
    }
}
