package jobwire.engines.activiti7;

import dev.jobwire.activiti.ActivitiHints;
import dev.jobwire.activiti.ActivitiJobEngine;
import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.endpoint.JobEndpoint;
import dev.jobwire.hints.HintPublisher;
import dev.jobwire.hints.HintSettings;
import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import jobwire.engines.Executor;
import jobwire.engines.Http;
import jobwire.engines.Pool;
import jobwire.engines.Requests;
import jobwire.engines.Settings;
import jobwire.engines.Work;
import org.activiti.engine.ProcessEngine;
import org.activiti.engine.ProcessEngineConfiguration;
import org.activiti.engine.impl.cfg.StandaloneProcessEngineConfiguration;

/** Activiti 7 without Spring. Only the endpoint runs jobs. */
public final class Main {
    private Main() {}

    /** Starts the program. */
    public static void main(String[] arguments) throws IOException {
        Settings settings = Settings.fromEnvironment();
        Work work = new Work(settings);
        StandaloneProcessEngineConfiguration configuration =
                new StandaloneProcessEngineConfiguration();
        configuration.setDataSource(Pool.open(settings, "engine", settings.connections()));
        if (settings.jdbcUrl().startsWith("jdbc:mariadb:")) {
            // Activiti does not know the product MariaDB.
            configuration.setDatabaseType("mysql");
        }
        configuration.setDatabaseSchemaUpdate(ProcessEngineConfiguration.DB_SCHEMA_UPDATE_TRUE);
        configuration.setBeans(Map.of("work", work));
        configuration.setAsyncExecutorActivate(settings.executor() != Executor.OFF);
        // A message leaves by a manager of jobs of the user's. There is none: each one is lost.
        configuration.setAsyncExecutorMessageQueueMode(
                settings.executor() == Executor.MESSAGE_QUEUE);
        configuration.setAsyncExecutorAsyncJobLockTimeInMillis(settings.lockMillis());
        configuration.setAsyncExecutorTimerLockTimeInMillis(settings.lockMillis());
        configuration.setAsyncExecutorResetExpiredJobsInterval(settings.resetMillis());
        configuration.setAsyncExecutorDefaultTimerJobAcquireWaitTime(settings.resetMillis());
        settings.acquireMillis().ifPresent(millis -> {
            configuration.setAsyncExecutorDefaultAsyncJobAcquireWaitTime(millis);
            configuration.setAsyncExecutorMaxAsyncJobsDuePerAcquisition(100);
            configuration.setAsyncExecutorCorePoolSize(8);
        });
        Optional<HintPublisher> hints =
                HintSettings.fromEnvironment(ActivitiHints.LANE).map(HintPublisher::start);
        hints.ifPresent(publisher -> ActivitiHints.install(configuration, publisher));
        ProcessEngine engine = configuration.buildProcessEngine();
        ActivitiJobEngine runner = new ActivitiJobEngine(engine);
        ExecutionEndpoint endpoint = new ExecutionEndpoint(runner);
        JobEndpoint jobs = new JobEndpoint(runner);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            jobs.close();
            engine.close();
            hints.ifPresent(HintPublisher::close);
        }));
        Http.serve(
                new Requests(
                        new Activiti(engine), work, settings, hints, Optional.of(endpoint),
                        Optional.of(jobs)),
                settings);
    }
}
