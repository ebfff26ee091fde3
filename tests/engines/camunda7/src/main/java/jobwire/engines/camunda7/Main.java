package jobwire.engines.camunda7;

import dev.jobwire.hints.HintPublisher;
import java.util.Map;
import java.util.Optional;
import jobwire.engines.Requests;
import jobwire.engines.Settings;
import jobwire.engines.Work;
import jobwire.engines.spring.Application;
import org.camunda.bpm.engine.ProcessEngine;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Bean;

/** Camunda 7 with its REST below {@code /engine-rest}, on Spring Boot. */
@SpringBootApplication
public class Main {
    /** Starts the program; an argument {@code --NAME=VALUE} sets any property. */
    public static void main(String[] arguments) {
        Map<String, Object> properties = Application.properties();
        properties.putAll(Application.base("spring.jersey.application-path"));
        properties.put("camunda.bpm.job-execution.enabled", Application.hasExecutor());
        // The requests deploy the processes.
        properties.put("camunda.bpm.auto-deployment-enabled", false);
        // Camunda refuses a process without a time to live otherwise.
        properties.put(
                "camunda.bpm.generic-properties.properties.enforce-history-time-to-live", false);
        if (String.valueOf(properties.get("spring.datasource.url")).startsWith("jdbc:mariadb:")) {
            // Camunda does not know the product MariaDB.
            properties.put("camunda.bpm.database.type", "mysql");
        }
        Application.run(Main.class, properties, arguments);
    }

    @Bean
    @ConditionalOnProperty("local")
    Local local(Work work) {
        return new Local(work);
    }

    @Bean
    Requests requests(
            ProcessEngine engine, Work work, Settings settings, Optional<HintPublisher> hints) {
        return new Requests(new Camunda(engine), work, settings, hints, Optional.empty());
    }
}
