package jobwire.engines.flowable7;

import java.util.HashMap;
import java.util.Map;
import jobwire.engines.Executor;
import jobwire.engines.Requests;
import jobwire.engines.Settings;
import jobwire.engines.Work;
import org.flowable.engine.ProcessEngine;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

/**
 * Flowable 7 with its REST below {@code /process-api}. An argument {@code --NAME=VALUE} sets any
 * property of Spring Boot or Flowable.
 */
@SpringBootApplication
public class Main {
    private static final Settings SETTINGS = Settings.fromEnvironment();

    /** Starts the program. */
    public static void main(String[] arguments) {
        if (SETTINGS.executor() == Executor.MESSAGE_QUEUE) {
            throw new IllegalArgumentException("Flowable 7 has no message-queue mode");
        }
        SpringApplication application = new SpringApplication(Main.class);
        application.setDefaultProperties(properties());
        application.run(arguments);
    }

    private static Map<String, Object> properties() {
        Map<String, Object> properties = new HashMap<>();
        properties.put("server.address", "127.0.0.1");
        properties.put("server.port", SETTINGS.port());
        properties.put("spring.datasource.url", SETTINGS.jdbcUrl());
        properties.put("spring.datasource.username", SETTINGS.databaseUser());
        properties.put("spring.datasource.password", SETTINGS.databasePassword());
        properties.put("spring.datasource.hikari.maximum-pool-size", SETTINGS.connections());
        properties.put("spring.datasource.hikari.minimum-idle", 0);
        properties.put("flowable.async-executor-activate", SETTINGS.executor() == Executor.ON);
        properties.put("flowable.check-process-definitions", false);
        SETTINGS.base().ifPresent(base -> properties.put("flowable.process.servlet.path", base));
        return properties;
    }

    @Bean
    Settings settings() {
        return SETTINGS;
    }

    @Bean
    Work work(Settings settings) {
        return new Work(settings);
    }

    @Bean
    Requests requests(ProcessEngine engine, Work work, Settings settings) {
        return new Requests(new Flowable(engine), work, settings);
    }
}
