package dev.jobwire.camunda;

import dev.jobwire.endpoint.CallerLock;
import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.JobEngine;
import dev.jobwire.tables.Columns;
import dev.jobwire.tables.EngineTables;
import java.util.List;
import java.util.Optional;
import org.camunda.bpm.engine.ManagementService;
import org.camunda.bpm.engine.ProcessEngine;
import org.camunda.bpm.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.camunda.bpm.engine.management.SchemaLogEntry;
import org.camunda.bpm.engine.runtime.Job;

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
        this.runner = new CamundaJobRunner(engine);
        this.tables = new EngineTables(
                configuration.getDataSource(),
                configuration.getDatabaseTablePrefix(),
                Columns.ofCamunda());
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

    @Override
    public boolean retry(String id, int retries) {
        Job job = find(id);
        if (job == null) {
            return false;
        }
        if (job.getRetries() <= 0) {
            management.setJobRetries(id, retries);
        } else if (job.getDuedate() != null) {
            // Without a due date, the job is executable at once.
            management.setJobDuedate(id, null);
        }
        return true;
    }

    @Override
    public boolean delete(String id) {
        if (find(id) == null) {
            return false;
        }
        management.deleteJob(id);
        return true;
    }

    private Job find(String id) {
        return management.createJobQuery().jobId(id).singleResult();
    }
}
