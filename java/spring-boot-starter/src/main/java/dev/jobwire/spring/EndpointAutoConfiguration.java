package dev.jobwire.spring;

import dev.jobwire.activiti.ActivitiJobEngine;
import dev.jobwire.camunda.CamundaJobEngine;
import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.endpoint.JobEndpoint;
import dev.jobwire.endpoint.JobEngine;
import dev.jobwire.endpoint.JobRunner;
import dev.jobwire.flowable.FlowableJobEngine;
import java.util.Optional;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
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
    EndpointController jobwireEndpointController(
            ObjectProvider<JobRunner> runners, ObjectProvider<JobEndpoint> jobs) {
        JobRunner runner = runners.getIfAvailable();
        if (runner == null) {
            throw new IllegalStateException("jobwire.engine-endpoint is for Flowable, Activiti and "
                    + "Camunda 7, and the application has none of them: leave the property out");
        }
        return new EndpointController(
                new ExecutionEndpoint(runner), Optional.ofNullable(jobs.getIfAvailable()));
    }

    /** The whole contract, for engines whose database the nodes do not reach. */
    @Bean(destroyMethod = "close")
    @ConditionalOnBean(JobEngine.class)
    JobEndpoint jobwireJobEndpoint(JobEngine engine) {
        return new JobEndpoint(engine);
    }

    /** Serves the jobs of Flowable. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(org.flowable.engine.ProcessEngine.class)
    @ConditionalOnMissingBean(JobRunner.class)
    static class Flowable {
        @Bean
        FlowableJobEngine jobwireFlowableRunner(org.flowable.engine.ProcessEngine engine) {
            return new FlowableJobEngine(engine);
        }
    }

    /** Serves the jobs of Activiti. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(org.activiti.engine.ProcessEngine.class)
    @ConditionalOnMissingBean(JobRunner.class)
    static class Activiti {
        @Bean
        ActivitiJobEngine jobwireActivitiRunner(org.activiti.engine.ProcessEngine engine) {
            return new ActivitiJobEngine(engine);
        }
    }

    /** Serves the jobs of Camunda 7. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(org.camunda.bpm.engine.ProcessEngine.class)
    @ConditionalOnMissingBean(JobRunner.class)
    static class Camunda {
        @Bean
        CamundaJobEngine jobwireCamundaRunner(org.camunda.bpm.engine.ProcessEngine engine) {
            return new CamundaJobEngine(engine);
        }
    }
}
