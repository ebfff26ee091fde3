package dev.jobwire.spring;

import dev.jobwire.activiti.ActivitiHints;
import dev.jobwire.hints.HintPublisher;
import org.activiti.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;

/** Publishes the hints of Activiti's jobs, if a broker is set. */
@AutoConfiguration
@ConditionalOnClass(ProcessEngineConfigurationImpl.class)
@ConditionalOnProperty("jobwire.broker-url")
@EnableConfigurationProperties(JobwireProperties.class)
class ActivitiHintsAutoConfiguration {
    private static final String HINTS = "jobwireActivitiHints";

    @Bean(name = HINTS, destroyMethod = "close")
    HintPublisher hints(JobwireProperties properties) {
        return HintPublisher.start(properties.hints(ActivitiHints.LANE));
    }

    @Bean
    static BeanPostProcessor jobwireActivitiInstaller(
            @Qualifier(HINTS) ObjectProvider<HintPublisher> hints) {
        return new Installer(hints);
    }

    /** Adds the listener to the configuration of the engine before the engine is built. */
    private record Installer(ObjectProvider<HintPublisher> hints) implements BeanPostProcessor {
        @Override
        public Object postProcessBeforeInitialization(Object bean, String name) {
            if (bean instanceof ProcessEngineConfigurationImpl configuration) {
                ActivitiHints.install(configuration, hints.getObject());
            }
            return bean;
        }
    }
}
