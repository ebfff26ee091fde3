package jobwire.engines.activiti7;

import java.util.List;
import java.util.Optional;
import jobwire.engines.Answer;
import org.activiti.engine.ManagementService;
import org.activiti.engine.ProcessEngine;
import org.activiti.engine.impl.asyncexecutor.ExecuteAsyncRunnable;
import org.activiti.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.activiti.engine.impl.persistence.entity.JobEntity;
import org.activiti.engine.runtime.Job;

/**
 * Runs a job as the engine's own executor does: it locks the instance of an exclusive job, runs the
 * job in one transaction, and handles a failure after that transaction has ended. The caller holds
 * the lock of the job's row.
 */
final class JobExecution extends ExecuteAsyncRunnable {
    private boolean isGivenBack;

    private JobExecution(JobEntity job, ProcessEngineConfigurationImpl configuration) {
        super(job, configuration);
    }

    @Override
    protected void unacquireJob() {
        isGivenBack = true;
        super.unacquireJob();
    }

    /** Returns what became of the job; empty if it is not executable. */
    static Optional<String> of(ProcessEngine engine, String id) {
        ProcessEngineConfigurationImpl configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        JobEntity job = configuration.getCommandExecutor()
                .execute(context -> context.getJobEntityManager().findById(id));
        if (job == null) {
            return Optional.empty();
        }
        JobExecution run = new JobExecution(job, configuration);
        run.run();
        ManagementService jobs = engine.getManagementService();
        return Optional.of(
                run.isGivenBack ? givenBack(jobs, job.getExecutionId()) : became(jobs, id));
    }

    /** A job that the engine gives back has a new id; its execution is the same. */
    private static String givenBack(ManagementService jobs, String execution) {
        List<Job> again = jobs.createJobQuery().executionId(execution).list();
        return again.isEmpty() ? "{\"state\":\"gone\"}" : state("job", again.get(0));
    }

    private static String became(ManagementService jobs, String id) {
        Job job = jobs.createJobQuery().jobId(id).singleResult();
        if (job != null) {
            return state("job", job);
        }
        Job timer = jobs.createTimerJobQuery().jobId(id).singleResult();
        if (timer != null) {
            return state("timer", timer);
        }
        Job suspended = jobs.createSuspendedJobQuery().jobId(id).singleResult();
        if (suspended != null) {
            return state("suspended", suspended);
        }
        Job dead = jobs.createDeadLetterJobQuery().jobId(id).singleResult();
        return dead == null ? "{\"state\":\"gone\"}" : state("dead letter", dead);
    }

    private static String state(String name, Job job) {
        String message = job.getExceptionMessage();
        return "{\"state\":" + Answer.quoted(name)
                + ",\"id\":" + Answer.quoted(job.getId())
                + ",\"retries\":" + job.getRetries()
                + ",\"message\":" + (message == null ? "null" : Answer.quoted(message)) + "}";
    }
}
