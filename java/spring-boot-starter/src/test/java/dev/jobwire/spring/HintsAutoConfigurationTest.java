package dev.jobwire.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.jobwire.activiti.ActivitiHints;
import dev.jobwire.flowable.FlowableHints;
import dev.jobwire.hints.HintPublisher;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** Starts applications whose broker is away: no broker listens at this address. */
class HintsAutoConfigurationTest {
    private static final String BROKER = "jobwire.broker-url=amqp://127.0.0.1:1";

    private final ApplicationContextRunner application = new ApplicationContextRunner()
            .withConfiguration(AutoConfigurations.of(
                    ActivitiHintsAutoConfiguration.class, FlowableHintsAutoConfiguration.class))
            .withUserConfiguration(Engines.class);

    /** Renames the configuration class, because both engines use the same name. */
    static class StandaloneActiviti
            extends org.activiti.engine.impl.cfg.StandaloneProcessEngineConfiguration {}

    /** Renames the configuration class, because both engines use the same name. */
    static class StandaloneFlowable
            extends org.flowable.engine.impl.cfg.StandaloneProcessEngineConfiguration {}

    /** The configurations of two engines that are not built. */
    @Configuration(proxyBeanMethods = false)
    static class Engines {
        @Bean
        StandaloneActiviti activiti() {
            return new StandaloneActiviti();
        }

        @Bean
        StandaloneFlowable flowable() {
            return new StandaloneFlowable();
        }
    }

    @Test
    void withoutABrokerNothingIsAdded() {
        application.run(context -> {
            assertTrue(context.getBeansOfType(HintPublisher.class).isEmpty());
            assertNull(context.getBean(StandaloneActiviti.class)
                    .getTypedEventListeners());
        });
    }

    @Test
    void aBrokerAddsTheListenerOfEachEngineWithItsOwnLane() {
        application.withPropertyValues(BROKER).run(context -> {
            assertTrue(context.getBean(StandaloneActiviti.class)
                    .getTypedEventListeners()
                    .get("ENTITY_CREATED")
                    .get(0) instanceof ActivitiHints);
            assertTrue(context.getBean(StandaloneFlowable.class)
                    .getTypedEventListeners()
                    .get("ENTITY_CREATED")
                    .get(0) instanceof FlowableHints);
            Map<String, HintPublisher> hints = context.getBeansOfType(HintPublisher.class);
            assertEquals("activiti", hints.get("jobwireActivitiHints").lane());
            assertEquals("flowable", hints.get("jobwireFlowableHints").lane());
        });
    }

    @Test
    void aMistakeInTheSettingsStopsTheStartAndIsNamed() {
        application.withPropertyValues(BROKER, "jobwire.hint-buffer=0").run(context -> {
            Throwable cause = context.getStartupFailure();
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            assertTrue(cause.getMessage().contains("hint_buffer"), cause.getMessage());
        });
    }
}
