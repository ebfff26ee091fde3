package dev.jobwire.spring;

import dev.jobwire.camunda.CamundaHints;
import dev.jobwire.hints.HintPublisher;
import org.camunda.bpm.engine.impl.cfg.ProcessEnginePlugin;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;

/** Publishes the hints of Camunda's jobs by a plugin of the engine, if a broker is set. */
@AutoConfiguration
@ConditionalOnClass(ProcessEnginePlugin.class)
@ConditionalOnProperty("jobwire.broker-url")
@EnableConfigurationProperties(JobwireProperties.class)
class CamundaHintsAutoConfiguration {
    private static final String HINTS = "jobwireCamundaHints";

    @Bean(name = HINTS, destroyMethod = "close")
    HintPublisher hints(JobwireProperties properties) {
        return HintPublisher.start(properties.hints(CamundaHints.LANE));
    }

    @Bean
    ProcessEnginePlugin jobwireCamundaPlugin(@Qualifier(HINTS) HintPublisher hints) {
        return new CamundaHints(hints);
    }
}
