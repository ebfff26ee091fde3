package jobwire.engines.spring;

import java.util.HashMap;
import java.util.Map;
import jobwire.engines.Executor;
import jobwire.engines.Settings;
import jobwire.engines.Work;
import org.springframework.boot.SpringApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;

/** What the programs on Spring Boot share. An engine adds the bean {@code Requests}. */
@Configuration
@Import({Security.class, TestController.class})
public class Application {
    private static final Settings SETTINGS = Settings.fromEnvironment();

    /** The defaults of the properties of Spring Boot; {@code --NAME=VALUE} overrides one. */
    public static Map<String, Object> properties() {
        Map<String, Object> properties = new HashMap<>();
        properties.put("server.address", "127.0.0.1");
        properties.put("server.port", SETTINGS.port());
        properties.put("spring.datasource.url", SETTINGS.jdbcUrl());
        properties.put("spring.datasource.username", SETTINGS.databaseUser());
        properties.put("spring.datasource.password", SETTINGS.databasePassword());
        properties.put("spring.datasource.hikari.maximum-pool-size", SETTINGS.connections());
        properties.put("spring.datasource.hikari.minimum-idle", 0);
        return properties;
    }

    /** The property of the engine's REST, if the path is not the default, and its value. */
    public static Map<String, Object> base(String property) {
        Map<String, Object> properties = new HashMap<>();
        SETTINGS.base().ifPresent(base -> properties.put(property, base));
        return properties;
    }

    /** Whether the engine's own executor runs. */
    public static boolean hasExecutor() {
        if (SETTINGS.executor() == Executor.MESSAGE_QUEUE) {
            throw new IllegalArgumentException("this engine has no message-queue mode");
        }
        return SETTINGS.executor() == Executor.ON;
    }

    /** Starts an engine. */
    public static void run(Class<?> engine, Map<String, Object> properties, String[] arguments) {
        SpringApplication application = new SpringApplication(engine, Application.class);
        application.setDefaultProperties(properties);
        application.run(arguments);
    }

    @Bean
    Settings settings() {
        return SETTINGS;
    }

    @Bean
    Work work(Settings settings) {
        return new Work(settings);
    }
}
