package dev.jobwire.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.jobwire.activiti.ActivitiJobEngine;
import dev.jobwire.camunda.CamundaJobEngine;
import dev.jobwire.endpoint.JobEndpoint;
import dev.jobwire.endpoint.JobEngine;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.util.Map;
import javax.sql.DataSource;
import org.activiti.engine.ProcessEngine;
import org.activiti.engine.impl.cfg.StandaloneProcessEngineConfiguration;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.test.context.FilteredClassLoader;
import org.springframework.boot.test.context.runner.WebApplicationContextRunner;

/** Starts applications with an engine whose tables are not read. */
class EndpointAutoConfigurationTest {
    private final WebApplicationContextRunner application = new WebApplicationContextRunner()
            .withConfiguration(AutoConfigurations.of(EndpointAutoConfiguration.class))
            .withClassLoader(new FilteredClassLoader(
                    org.flowable.engine.ProcessEngine.class,
                    org.camunda.bpm.engine.ProcessEngine.class))
            .withBean(ProcessEngine.class, EndpointAutoConfigurationTest::activiti);

    /** Returns an object whose methods have these answers, and otherwise null. */
    private static <T> T answering(Class<T> type, Map<String, Object> answers) {
        return type.cast(Proxy.newProxyInstance(
                type.getClassLoader(), new Class<?>[] {type},
                (self, called, how) -> switch (called.getName()) {
                    case "hashCode" -> System.identityHashCode(self);
                    case "equals" -> self == how[0];
                    default -> answers.get(called.getName());
                }));
    }

    private static DataSource source() {
        DatabaseMetaData about =
                answering(DatabaseMetaData.class, Map.of("getDatabaseProductName", "MariaDB"));
        Connection connection = answering(Connection.class, Map.of("getMetaData", about));
        return answering(DataSource.class, Map.of("getConnection", connection));
    }

    private static ProcessEngine activiti() {
        StandaloneProcessEngineConfiguration configuration =
                new StandaloneProcessEngineConfiguration();
        configuration.setDataSource(source());
        return answering(
                ProcessEngine.class, Map.of("getProcessEngineConfiguration", configuration));
    }

    private static org.camunda.bpm.engine.ProcessEngine camunda() {
        var configuration =
                new org.camunda.bpm.engine.impl.cfg.StandaloneProcessEngineConfiguration();
        configuration.setDataSource(source());
        return answering(
                org.camunda.bpm.engine.ProcessEngine.class,
                Map.of("getProcessEngineConfiguration", configuration));
    }

    @Test
    void theWholeContractIsServedForActiviti() {
        application.withPropertyValues("jobwire.engine-endpoint=true").run(context -> {
            assertTrue(context.getBean(JobEngine.class) instanceof ActivitiJobEngine);
            assertEquals(1, context.getBeansOfType(JobEndpoint.class).size());
            // Nodes send lists of runs to an address that tells so.
            String scope = context.getBean(EndpointController.class).scope().getBody();
            assertTrue(scope.contains("\"run_list\":200"), scope);
            assertTrue(!scope.contains("held"), "the engine locks the instances: " + scope);
        });
    }

    @Test
    void theWholeContractIsServedForCamunda() {
        new WebApplicationContextRunner()
                .withConfiguration(AutoConfigurations.of(EndpointAutoConfiguration.class))
                .withClassLoader(new FilteredClassLoader(
                        org.flowable.engine.ProcessEngine.class, ProcessEngine.class))
                .withBean(
                        org.camunda.bpm.engine.ProcessEngine.class,
                        EndpointAutoConfigurationTest::camunda)
                .withPropertyValues("jobwire.engine-endpoint=true")
                .run(context -> {
                    assertTrue(context.getBean(JobEngine.class) instanceof CamundaJobEngine);
                    assertEquals(1, context.getBeansOfType(JobEndpoint.class).size());
                });
    }

    @Test
    void withoutThePropertyNothingIsServed() {
        application.run(context ->
                assertTrue(context.getBeansOfType(EndpointController.class).isEmpty()));
    }
}
