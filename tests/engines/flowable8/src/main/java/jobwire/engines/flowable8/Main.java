package jobwire.engines.flowable8;

import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.flowable.FlowableHints;
import dev.jobwire.flowable.FlowableJobRunner;
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
import jobwire.engines.flowable.Flowable;
import org.flowable.engine.ProcessEngine;
import org.flowable.engine.ProcessEngineConfiguration;
import org.flowable.engine.impl.cfg.StandaloneProcessEngineConfiguration;

/** Flowable 8 without Spring. Only the execution endpoint runs jobs. */
public final class Main {
    private Main() {}

    /** Starts the program. */
    public static void main(String[] arguments) throws IOException {
        Settings settings = Settings.fromEnvironment();
        if (settings.executor() == Executor.MESSAGE_QUEUE) {
            throw new IllegalArgumentException("Flowable 8 has no message-queue mode");
        }
        Work work = new Work(settings);
        StandaloneProcessEngineConfiguration configuration =
                new StandaloneProcessEngineConfiguration();
        configuration.setDataSource(Pool.open(settings, "engine", settings.connections()));
        configuration.setDatabaseSchemaUpdate(ProcessEngineConfiguration.DB_SCHEMA_UPDATE_TRUE);
        configuration.setBeans(Map.of("work", work));
        configuration.setAsyncExecutorActivate(settings.executor() == Executor.ON);
        Optional<HintPublisher> hints =
                HintSettings.fromEnvironment(FlowableHints.LANE).map(HintPublisher::start);
        hints.ifPresent(publisher -> FlowableHints.install(configuration, publisher));
        ProcessEngine engine = configuration.buildProcessEngine();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            engine.close();
            hints.ifPresent(HintPublisher::close);
        }));
        ExecutionEndpoint endpoint = new ExecutionEndpoint(new FlowableJobRunner(engine));
        Http.serve(
                new Requests(
                        new Flowable(engine), work, settings, hints, Optional.of(endpoint)),
                settings);
    }
}
