package dev.jobwire.spring;

import dev.jobwire.hints.HintPublisher;
import io.micrometer.core.instrument.MeterRegistry;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Bean;

/** Adds the counts of hints to the application's metrics, if it has Micrometer. */
@AutoConfiguration
@ConditionalOnClass(MeterRegistry.class)
@ConditionalOnProperty("jobwire.broker-url")
class HintMetricsAutoConfiguration {
    @Bean
    HintMetrics jobwireHintMetrics(ObjectProvider<HintPublisher> publishers) {
        return new HintMetrics(publishers.stream().toList());
    }
}
