package dev.jobwire.flowable;

import dev.jobwire.endpoint.ExecutedJob;
import dev.jobwire.endpoint.CallerLock;
import dev.jobwire.endpoint.JobEngine;
import dev.jobwire.tables.Columns;
import dev.jobwire.tables.EngineTables;
import dev.jobwire.tables.Timers;
import java.sql.Connection;
import java.util.Collection;
import java.util.Map;
import java.util.Optional;
import org.flowable.common.engine.impl.db.DbSqlSession;
import org.flowable.common.engine.impl.interceptor.CommandContext;
import org.flowable.common.engine.impl.interceptor.CommandExecutor;
import org.flowable.engine.ManagementService;
import org.flowable.engine.ProcessEngine;
import org.flowable.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.flowable.job.service.JobServiceConfiguration;
import org.flowable.job.service.impl.persistence.entity.TimerJobEntity;

/** A Flowable engine whose jobs are locked, run and rescued over the endpoint alone. */
public final class FlowableJobEngine implements JobEngine {
    private final ProcessEngineConfigurationImpl configuration;
    private final CommandExecutor commands;
    private final JobServiceConfiguration jobs;
    private final ManagementService management;
    private final FlowableJobRunner runner;
    private final EngineTables tables;
    private final Timers timers;

    /** Connects to the database of this engine. */
    public FlowableJobEngine(ProcessEngine engine) {
        this.configuration =
                (ProcessEngineConfigurationImpl) engine.getProcessEngineConfiguration();
        this.commands = configuration.getCommandExecutor();
        this.jobs = configuration.getJobServiceConfiguration();
        this.management = engine.getManagementService();
        this.runner = new FlowableJobRunner(engine);
        this.tables = new EngineTables(
                configuration.getDataSource(),
                configuration.getDatabaseTablePrefix(),
                Columns.ofFlowable());
        this.timers = new Timers(tables);
    }

    @Override
    public String name() {
        return "flowable";
    }

    @Override
    public String version() {
        Map<String, String> properties = management.getProperties();
        String version = properties.get("common.schema.version");
        return version == null ? properties.get("schema.version") : version;
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
    public boolean takesHeldInstances() {
        return runner.takesHeldInstances();
    }

    @Override
    public Optional<Collection<String>> categories() {
        return runner.categories();
    }

    @Override
    public boolean moveTimer(String id) {
        return commands.execute(context -> {
            TimerJobEntity timer = jobs.getTimerJobEntityManager().findById(id);
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
            return mayMove && jobs.getJobManager().moveTimerJobToExecutableJob(timer) != null;
        });
    }

    private static Connection connection(CommandContext context) {
        return context.getSession(DbSqlSession.class).getSqlSession().getConnection();
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
