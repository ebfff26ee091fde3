package dev.jobwire.spring;

import dev.jobwire.activiti.ActivitiJobRunner;
import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.endpoint.JobRunner;
import dev.jobwire.flowable.FlowableJobRunner;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * Serves the execution endpoint, if {@code jobwire.engine-endpoint} is true. The application must
 * secure the path as it secures its other paths.
 */
@AutoConfiguration
@ConditionalOnProperty(value = "jobwire.engine-endpoint", havingValue = "true")
@ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
class EndpointAutoConfiguration {
    @Bean
    EndpointController jobwireEndpointController(ObjectProvider<JobRunner> runners) {
        JobRunner runner = runners.getIfAvailable();
        if (runner == null) {
            throw new IllegalStateException("jobwire.engine-endpoint is for Flowable and Activiti, "
                    + "and the application has neither; Camunda needs no endpoint: leave the "
                    + "property out");
        }
        return new EndpointController(new ExecutionEndpoint(runner));
    }

    /** Serves the jobs of Flowable. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(org.flowable.engine.ProcessEngine.class)
    @ConditionalOnMissingBean(JobRunner.class)
    static class Flowable {
        @Bean
        JobRunner jobwireFlowableRunner(org.flowable.engine.ProcessEngine engine) {
            return new FlowableJobRunner(engine);
        }
    }

    /** Serves the jobs of Activiti. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(org.activiti.engine.ProcessEngine.class)
    @ConditionalOnMissingBean(JobRunner.class)
    static class Activiti {
        @Bean
        JobRunner jobwireActivitiRunner(org.activiti.engine.ProcessEngine engine) {
            return new ActivitiJobRunner(engine);
        }
    }
}
