package dev.jobwire.camunda;

import dev.jobwire.endpoint.CallerLock;
import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.JobEngine;
import dev.jobwire.tables.EngineTables;
import java.util.Date;
import java.util.List;
import java.util.Optional;
import org.camunda.bpm.engine.ManagementService;
import org.camunda.bpm.engine.ProcessEngine;
import org.camunda.bpm.engine.ProcessEngineException;
import org.camunda.bpm.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.camunda.bpm.engine.impl.persistence.entity.JobEntity;
import org.camunda.bpm.engine.impl.util.ClockUtil;
import org.camunda.bpm.engine.management.SchemaLogEntry;

/**
 * A Camunda 7 engine whose jobs are locked, run and rescued over the endpoint alone. Its timers
 * become due in their rows, so none is moved.
 */
public final class CamundaJobEngine implements JobEngine {
    private final ProcessEngineConfigurationImpl configuration;
    private final ManagementService management;
    private final CamundaJobRunner runner;
    private final EngineTables tables;

    /** Connects to the database of this engine. */
    public CamundaJobEngine(ProcessEngine engine) {
        this.configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        this.management = engine.getManagementService();
        this.tables = CamundaJobRunner.tables(configuration);
        this.runner = new CamundaJobRunner(configuration, tables);
    }

    @Override
    public String name() {
        return "camunda";
    }

    @Override
    public String version() {
        List<SchemaLogEntry> newest =
                management.createSchemaLogQuery().orderByTimestamp().desc().listPage(0, 1);
        return newest.isEmpty() ? null : newest.get(0).getVersion();
    }

    @Override
    public boolean hasExecutor() {
        return configuration.getJobExecutor() != null && configuration.getJobExecutor().isActive();
    }

    @Override
    public EngineTables tables() {
        return tables;
    }

    @Override
    public Optional<ExecutedJob> run(String job, CallerLock lock) {
        return runner.run(job, lock);
    }

    /**
     * Changes the job in the transaction that has loaded it. A lock that is written meanwhile raises
     * {@code REV_}, so the change fails.
     */
    @Override
    public boolean retry(String id, int retries) {
        return configuration.getCommandExecutorTxRequired().execute(context -> {
            JobEntity job = context.getJobManager().findJobById(id);
            if (job == null) {
                return false;
            }
            if (job.getLockOwner() != null || job.getLockExpirationTime() != null) {
                // The engine itself does not compare: the change would raise REV_ below a running
                // execution, which then could not commit, and would run again.
                throw new ProcessEngineException(
                        "Cannot retry job " + id + " when the job is being executed. Try again later.");
            }
            Date due = job.getDuedate();
            if (job.getRetries() <= 0) {
                management.setJobRetries(id, retries);
            } else if (due != null && due.after(ClockUtil.getCurrentTime())) {
                // Without a due date, the job is executable at once.
                management.setJobDuedate(id, null);
            }
            return true;
        });
    }

    @Override
    public boolean delete(String id) {
        if (management.createJobQuery().jobId(id).count() == 0) {
            return false;
        }
        // Fails if the job is locked.
        management.deleteJob(id);
        return true;
    }
}
