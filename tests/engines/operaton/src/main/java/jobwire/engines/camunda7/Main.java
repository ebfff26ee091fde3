package jobwire.engines.camunda7;

import dev.jobwire.camunda.CamundaHints;
import dev.jobwire.camunda.CamundaJobEngine;
import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.endpoint.JobEndpoint;
import dev.jobwire.hints.HintPublisher;
import dev.jobwire.hints.HintSettings;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import jobwire.engines.Executor;
import jobwire.engines.Http;
import jobwire.engines.Pool;
import jobwire.engines.Requests;
import jobwire.engines.Settings;
import jobwire.engines.Work;
import org.operaton.bpm.engine.ProcessEngine;
import org.operaton.bpm.engine.ProcessEngineConfiguration;
import org.operaton.bpm.engine.impl.cfg.StandaloneProcessEngineConfiguration;

/** A fork of Camunda 7 without Spring. Only the endpoint runs jobs. */
public final class Main {
    private Main() {}

    /** Starts the program. */
    public static void main(String[] arguments) throws IOException {
        Settings settings = Settings.fromEnvironment();
        Work work = new Work(settings);
        StandaloneProcessEngineConfiguration configuration =
                new StandaloneProcessEngineConfiguration();
        configuration.setDataSource(Pool.open(settings, "engine", settings.connections()));
        configuration.setDatabaseSchemaUpdate(ProcessEngineConfiguration.DB_SCHEMA_UPDATE_TRUE);
        configuration.setBeans(new HashMap<>(Map.of("work", work)));
        configuration.setJobExecutorActivate(settings.executor() != Executor.OFF);
        configuration.setEnforceHistoryTimeToLive(false);
        Optional<HintPublisher> hints =
                HintSettings.fromEnvironment(CamundaHints.LANE).map(HintPublisher::start);
        hints.ifPresent(
                publisher ->
                        configuration.getProcessEnginePlugins().add(new CamundaHints(publisher)));
        ProcessEngine engine = configuration.buildProcessEngine();
        CamundaJobEngine runner = new CamundaJobEngine(engine);
        ExecutionEndpoint endpoint = new ExecutionEndpoint(runner);
        JobEndpoint jobs = new JobEndpoint(runner);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            jobs.close();
            engine.close();
            hints.ifPresent(HintPublisher::close);
        }));
        Http.serve(
                new Requests(
                        new Camunda(engine), work, settings, hints, Optional.of(endpoint),
                        Optional.of(jobs)),
                settings);
    }
}
