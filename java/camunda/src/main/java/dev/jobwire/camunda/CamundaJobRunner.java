package dev.jobwire.camunda;

import dev.jobwire.endpoint.CallerLock;
import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.JobRunner;
import dev.jobwire.tables.Columns;
import dev.jobwire.tables.EngineTables;
import java.sql.Connection;
import java.util.Optional;
import org.camunda.bpm.engine.OptimisticLockingException;
import org.camunda.bpm.engine.ProcessEngine;
import org.camunda.bpm.engine.impl.ProcessEngineLogger;
import org.camunda.bpm.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.camunda.bpm.engine.impl.cmd.ExecuteJobsCmd;
import org.camunda.bpm.engine.impl.context.Context;
import org.camunda.bpm.engine.impl.interceptor.CommandContext;
import org.camunda.bpm.engine.impl.interceptor.CommandExecutor;
import org.camunda.bpm.engine.impl.jobexecutor.ExecuteJobHelper;
import org.camunda.bpm.engine.impl.jobexecutor.FailedJobListener;
import org.camunda.bpm.engine.impl.jobexecutor.JobExecutorContext;
import org.camunda.bpm.engine.impl.jobexecutor.JobFailureCollector;
import org.camunda.bpm.engine.impl.jobexecutor.SuccessfulJobListener;
import org.camunda.bpm.engine.impl.persistence.entity.JobEntity;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Runs a job like the engine's own executor: in one transaction, and counts a failure after the end
 * of that transaction. The caller holds the lock of the job's row and runs one job of an instance at
 * a time.
 *
 * <p>To decide whether another node has taken the job over, the engine compares the end of the lock.
 * This class compares the owner of the lock. So the lock may be extended while the job runs, and the
 * caller must name the owner.
 */
public final class CamundaJobRunner implements JobRunner {
    private static final Logger LOG = LoggerFactory.getLogger(CamundaJobRunner.class);

    private final ProcessEngineConfigurationImpl configuration;
    private final CommandExecutor commands;
    private final EngineTables tables;

    /** Creates a runner for the jobs of this engine. */
    public CamundaJobRunner(ProcessEngine engine) {
        this((ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration());
    }

    private CamundaJobRunner(ProcessEngineConfigurationImpl configuration) {
        this(configuration, tables(configuration));
    }

    CamundaJobRunner(ProcessEngineConfigurationImpl configuration, EngineTables tables) {
        this.configuration = configuration;
        this.commands = configuration.getCommandExecutorTxRequired();
        this.tables = tables;
    }

    /** Returns the tables of an engine. */
    static EngineTables tables(ProcessEngineConfigurationImpl configuration) {
        return new EngineTables(
                configuration.getDataSource(),
                configuration.getDatabaseTablePrefix(),
                Columns.ofCamunda());
    }

    @Override
    public Optional<ExecutedJob> run(String id, CallerLock lock) {
        JobFailureCollector collector = new JobFailureCollector(id);
        Context.setJobExecutorContext(new Sequential());
        try {
            return runLocked(id, lock, collector);
        } finally {
            Context.removeJobExecutorContext();
        }
    }

    private Optional<ExecutedJob> runLocked(
            String id, CallerLock lock, JobFailureCollector collector) {
        try {
            boolean isRun = commands.execute(context -> {
                JobEntity job = find(context, id);
                boolean mayRun = job != null
                        && lock.owner() != null
                        && lock.covers(job.getLockOwner())
                        && job.getRetries() > 0
                        && !job.isSuspended();
                if (!mayRun || !tables.isDue(connection(context), job.getDuedate())) {
                    return false;
                }
                new ExecuteJobsCmd(id, collector).execute(context);
                return true;
            });
            if (!isRun) {
                return Optional.empty();
            }
        } catch (Throwable failure) {
            if (collector.getJob() == null) {
                throw failure;
            }
            // The engine's executor also catches every error of a delegate.
            collector.setFailure(failure);
            return failed(id, lock, collector);
        }
        commands.execute(new SuccessfulJobListener());
        // The row is gone, or it is a repeating job of the engine itself, such as the history cleanup.
        return Optional.of(ExecutedJob.gone());
    }

    private Optional<ExecutedJob> failed(
            String id, CallerLock lock, JobFailureCollector collector) {
        Throwable failure = collector.getFailure();
        if (ProcessEngineLogger.shouldLogJobException(configuration, collector.getJob())) {
            ExecuteJobHelper.LOGGING_HANDLER.exceptionWhileExecutingJob(id, failure);
        }
        Failed failed = new Failed(commands, collector, lock);
        try {
            record(failed);
        } catch (RuntimeException | Error unrecorded) {
            // The attempts are unchanged. With an unlocked row, the job would run again at once, and
            // again.
            LOG.warn(
                    "the failure of job {} could not be recorded; its lock stays until it expires",
                    id, unrecorded);
            return Optional.of(ExecutedJob.unrecorded(id));
        }
        if (failed.isNotHeld) {
            return Optional.empty();
        }
        // A conflict between transactions costs no attempt.
        boolean isConflict = failure instanceof OptimisticLockingException;
        ExecutedJob became =
                commands.execute(context -> became(find(context, id), isConflict));
        return Optional.of(became);
    }

    /** Counts a failure, again after a conflict with another transaction. */
    private void record(Failed failed) {
        while (true) {
            try {
                commands.execute(failed);
                return;
            } catch (OptimisticLockingException conflict) {
                failed.incrementCountRetries();
                if (failed.getRetriesLeft() <= 0) {
                    throw conflict;
                }
            }
        }
    }

    private static Connection connection(CommandContext context) {
        return context.getDbSqlSession().getSqlSession().getConnection();
    }

    private static JobEntity find(CommandContext context, String id) {
        return context.getJobManager().findJobById(id);
    }

    /** Returns the state of a job after its failure. Its next attempt may be due at once. */
    private static ExecutedJob became(JobEntity job, boolean isConflict) {
        if (job == null) {
            return ExecutedJob.gone();
        }
        ExecutedJob.State state = isConflict ? ExecutedJob.State.JOB : ExecutedJob.State.TIMER;
        if (job.getRetries() <= 0) {
            state = ExecutedJob.State.DEAD_LETTER;
        } else if (job.isSuspended()) {
            state = ExecutedJob.State.SUSPENDED;
        }
        return new ExecutedJob(state, job.getId(), job.getRetries(), job.getExceptionMessage());
    }

    /**
     * Makes the engine execute a job like a job of its executor: with the tenant of the job, without
     * an authorization of the caller, and without an entry of its operation log.
     */
    private static final class Sequential extends JobExecutorContext {
        /**
         * Returns false. Otherwise the engine would lock a new exclusive job of the instance for the
         * thread that executes this one.
         */
        @Override
        public boolean isExecutingExclusiveJob() {
            return false;
        }
    }

    /**
     * Counts the failure of a job. Counts none on a job whose lock was lost: another node may run
     * it, and the loss may be the reason of this failure.
     */
    private static final class Failed extends FailedJobListener {
        private final CallerLock lock;
        private boolean isNotHeld;

        Failed(CommandExecutor commands, JobFailureCollector collector, CallerLock lock) {
            super(commands, collector);
            this.lock = lock;
        }

        @Override
        protected boolean isJobReacquired(CommandContext context) {
            JobEntity job = find(context, jobFailureCollector.getJobId());
            isNotHeld = job != null && !lock.covers(job.getLockOwner());
            return isNotHeld;
        }
    }
}
