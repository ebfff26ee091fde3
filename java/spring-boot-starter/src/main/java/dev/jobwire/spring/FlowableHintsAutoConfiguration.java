package dev.jobwire.spring;

import dev.jobwire.flowable.FlowableHints;
import dev.jobwire.hints.HintPublisher;
import org.flowable.engine.impl.cfg.ProcessEngineConfigurationImpl;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.annotation.Qualifier;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;

/** Publishes the hints of Flowable's jobs, if a broker is set. */
@AutoConfiguration
@ConditionalOnClass(ProcessEngineConfigurationImpl.class)
@ConditionalOnProperty("jobwire.broker-url")
@EnableConfigurationProperties(JobwireProperties.class)
class FlowableHintsAutoConfiguration {
    private static final String HINTS = "jobwireFlowableHints";

    @Bean(name = HINTS, destroyMethod = "close")
    HintPublisher hints(JobwireProperties properties) {
        return HintPublisher.start(properties.hints(FlowableHints.LANE));
    }

    @Bean
    static BeanPostProcessor jobwireFlowableInstaller(
            @Qualifier(HINTS) ObjectProvider<HintPublisher> hints) {
        return new Installer(hints);
    }

    /** Adds the listener to the configuration of the engine before the engine is built. */
    private record Installer(ObjectProvider<HintPublisher> hints) implements BeanPostProcessor {
        @Override
        public Object postProcessBeforeInitialization(Object bean, String name) {
            if (bean instanceof ProcessEngineConfigurationImpl configuration) {
                FlowableHints.install(configuration, hints.getObject());
            }
            return bean;
        }
    }
}
