package dev.jobwire.activiti;

import dev.jobwire.endpoint.CallerLock;
import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.JobEngine;
import dev.jobwire.tables.Columns;
import dev.jobwire.tables.EngineTables;
import dev.jobwire.tables.Timers;
import java.sql.Connection;
import java.util.Optional;
import org.activiti.engine.ManagementService;
import org.activiti.engine.ProcessEngine;
import org.activiti.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.activiti.engine.impl.interceptor.CommandContext;
import org.activiti.engine.impl.interceptor.CommandExecutor;
import org.activiti.engine.impl.persistence.entity.TimerJobEntity;

/**
 * An Activiti engine whose jobs are locked, run and rescued over the endpoint alone. The engine
 * locks the instance of an exclusive job while it runs. The lock of an instance has no owner.
 */
public final class ActivitiJobEngine implements JobEngine {
    private final ProcessEngineConfigurationImpl configuration;
    private final CommandExecutor commands;
    private final ManagementService management;
    private final ActivitiJobRunner runner;
    private final EngineTables tables;
    private final Timers timers;

    /** Connects to the database of this engine. */
    public ActivitiJobEngine(ProcessEngine engine) {
        this.configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        this.commands = configuration.getCommandExecutor();
        this.management = engine.getManagementService();
        this.runner = new ActivitiJobRunner(engine);
        this.tables = new EngineTables(
                configuration.getDataSource(),
                configuration.getDatabaseTablePrefix(),
                Columns.ofActiviti());
        this.timers = new Timers(tables);
    }

    @Override
    public String name() {
        return "activiti";
    }

    @Override
    public String version() {
        return management.getProperties().get("schema.version");
    }

    @Override
    public boolean hasExecutor() {
        return configuration.getAsyncExecutor() != null
                && configuration.getAsyncExecutor().isActive();
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
    public boolean moveTimer(String id) {
        return commands.execute(context -> {
            TimerJobEntity timer = context.getTimerJobEntityManager().findById(id);
            if (timer == null
                    || timer.getLockOwner() != null
                    || timer.getLockExpirationTime() != null
                    || timer.getDuedate() == null) {
                return false;
            }
            boolean mayMove = timers.mayMove(
                    connection(context),
                    id,
                    timer.getProcessInstanceId(),
                    timer.getDuedate().toInstant());
            return mayMove && context.getJobManager().moveTimerJobToExecutableJob(timer) != null;
        });
    }

    private static Connection connection(CommandContext context) {
        return context.getDbSqlSession().getSqlSession().getConnection();
    }

    @Override
    public boolean retry(String job, int retries) {
        return runner.retry(job, retries);
    }

    @Override
    public boolean delete(String job) {
        return runner.delete(job);
    }
}
