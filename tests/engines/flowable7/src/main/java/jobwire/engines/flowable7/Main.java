package jobwire.engines.flowable7;

import dev.jobwire.hints.HintPublisher;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import jobwire.engines.Requests;
import jobwire.engines.Settings;
import jobwire.engines.Work;
import jobwire.engines.flowable.Flowable;
import jobwire.engines.spring.Application;
import org.flowable.engine.ProcessEngine;
import org.flowable.spring.SpringProcessEngineConfiguration;
import org.flowable.spring.boot.EngineConfigurationConfigurer;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Bean;

/** Flowable 7 with its REST below {@code /process-api}, on Spring Boot. */
@SpringBootApplication
public class Main {
    /** Starts the program; an argument {@code --NAME=VALUE} sets any property. */
    public static void main(String[] arguments) {
        Map<String, Object> properties = Application.properties();
        properties.putAll(Application.base("flowable.process.servlet.path"));
        properties.put("flowable.async-executor-activate", Application.hasExecutor());
        // The requests deploy the processes.
        properties.put("flowable.check-process-definitions", false);
        properties.put("flowable.cmmn.enabled", false);
        properties.put("jobwire.engine-endpoint", true);
        Application.run(Main.class, properties, arguments);
    }

    /** The property {@code categories} names those whose jobs this node runs. */
    @Bean
    @ConditionalOnProperty("categories")
    EngineConfigurationConfigurer<SpringProcessEngineConfiguration> categories(
            @Value("${categories}") List<String> categories) {
        return configuration -> configuration.setEnabledJobCategories(categories);
    }

    @Bean
    Requests requests(
            ProcessEngine engine, Work work, Settings settings, Optional<HintPublisher> hints) {
        return new Requests(new Flowable(engine), work, settings, hints, Optional.empty());
    }
}
