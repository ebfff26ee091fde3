package dev.jobwire.camunda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.jobwire.endpoint.ExecutionEndpoint;
import dev.jobwire.endpoint.JobEndpoint;
import java.util.Map;
import org.camunda.bpm.engine.ProcessEngine;
import org.camunda.bpm.engine.delegate.DelegateExecution;
import org.camunda.bpm.engine.delegate.JavaDelegate;
import org.camunda.bpm.engine.impl.cfg.StandaloneInMemProcessEngineConfiguration;
import org.camunda.bpm.engine.runtime.Job;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/**
 * The operations for an engine in this process. The modules of the engines that share Camunda's
 * schema compile this test for their engine.
 */
class CamundaEndpointTest {
    private static final String OWNER = "jobwire:00000000-0000-4000-8000-000000000001:7";
    private static final String PROCESS = """
            <definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"
                         xmlns:engine="http://camunda.org/schema/1.0/bpmn" targetNamespace="jobwire">
              <process id="work" isExecutable="true">
                <startEvent id="start"/>
                <sequenceFlow id="start-work" sourceRef="start" targetRef="work-task"/>
                <serviceTask id="work-task" engine:asyncBefore="true" engine:class="%s"/>
                <sequenceFlow id="work-end" sourceRef="work-task" targetRef="end"/>
                <endEvent id="end"/>
              </process>
            </definitions>
            """.formatted(Work.class.getName());

    /** Fails if the variable {@code fails} is true. */
    public static final class Work implements JavaDelegate {
        @Override
        public void execute(DelegateExecution execution) {
            if (Boolean.TRUE.equals(execution.getVariable("fails"))) {
                throw new IllegalStateException("as wished");
            }
        }
    }

    private ProcessEngine engine;
    private JobEndpoint endpoint;

    @BeforeEach
    void start() {
        StandaloneInMemProcessEngineConfiguration configuration =
                new StandaloneInMemProcessEngineConfiguration();
        configuration.setJdbcUrl("jdbc:h2:mem:" + CamundaEndpointTest.class.getSimpleName());
        configuration.setJobExecutorActivate(false);
        configuration.setEnforceHistoryTimeToLive(false);
        engine = configuration.buildProcessEngine();
        engine.getRepositoryService().createDeployment()
                .addString("work.bpmn20.xml", PROCESS)
                .deploy();
        endpoint = new JobEndpoint(new CamundaJobEngine(engine));
    }

    @AfterEach
    void stop() {
        endpoint.close();
        engine.close();
    }

    private String ask(String operation, String body) {
        ExecutionEndpoint.Answer answer = endpoint.answer(operation, body);
        assertEquals(200, answer.status(), answer.json());
        return answer.json();
    }

    private String instance(boolean fails) {
        return engine.getRuntimeService()
                .startProcessInstanceByKey("work", Map.of("fails", fails))
                .getId();
    }

    private Job job(String instance) {
        return engine.getManagementService().createJobQuery()
                .processInstanceId(instance)
                .singleResult();
    }

    private String lock(Job job) {
        return ask("lock", """
                {"node":"00000000-0000-4000-8000-000000000001","fence":7,"lease":30000,
                 "jobs":[{"id":"%s","instance":"%s"}]}
                """.formatted(job.getId(), job.getProcessInstanceId()));
    }

    private String run(Job job) {
        return ask("run", """
                {"id":"%s","owner":"%s","lease":15000}
                """.formatted(job.getId(), OWNER));
    }

    private String settle(Job job) {
        return ask("settle", """
                {"held":[{"id":"%s","owner":"%s","instance":"%s","unanswered":false}]}
                """.formatted(job.getId(), OWNER, job.getProcessInstanceId()));
    }

    private static void assertContains(String part, String text) {
        assertTrue(text.contains(part), text);
    }

    @Test
    void aLockedJobRunsOnceAndIsDone() {
        Job job = job(instance(false));
        assertEquals("{\"state\":\"not held\"}", run(job));
        assertContains("\"owner\":\"" + OWNER + "\"", lock(job));
        assertContains("\"why\":\"locked\"", lock(job));
        assertEquals("{\"state\":\"gone\"}", run(job));
        assertEquals("{\"state\":\"not held\"}", run(job));
        assertContains("\"fate\":\"done\"", settle(job));
        assertNull(job(job.getProcessInstanceId()));
    }

    /** Nodes that lock jobs in the database run them by such requests. */
    @Test
    void aJobRunsUnderTheLockOfTheRequestAlone() {
        ExecutionEndpoint execution = new ExecutionEndpoint(new CamundaJobRunner(engine));
        Job job = job(instance(false));
        String instance = job.getProcessInstanceId();
        assertEquals(404, execution.execute(job.getId(), null, OWNER).status());
        lock(job);
        assertEquals(404, execution.execute(job.getId(), null).status());
        assertEquals(404, execution.execute(job.getId(), null, OWNER + "0").status());
        engine.getRuntimeService().suspendProcessInstanceById(instance);
        ExecutionEndpoint.Answer suspended = execution.execute(job.getId(), null, OWNER);
        assertEquals(404, suspended.status());
        // Nodes tell such a refusal from a wrong path by these words.
        assertContains("executable job", suspended.json());
        assertEquals(3, job(instance).getRetries());
        engine.getRuntimeService().activateProcessInstanceById(instance);
        assertEquals("{\"state\":\"gone\"}", execution.execute(job.getId(), null, OWNER).json());
        assertNull(job(instance));
    }

    @Test
    void aFailureUnderTheLockOfARequestIsCounted() {
        ExecutionEndpoint execution = new ExecutionEndpoint(new CamundaJobRunner(engine));
        Job job = job(instance(true));
        lock(job);
        String answer = execution.execute(job.getId(), null, OWNER).json();
        assertContains("\"state\":\"timer\"", answer);
        assertContains("\"retries\":2,\"message\":\"as wished\"", answer);
        assertContains("\"fate\":\"retry\"", settle(job));
    }

    @Test
    void theEngineCountsAFailureAndAnOperatorRetriesTheDeadLetter() {
        Job job = job(instance(true));
        for (int left = 2; left >= 0; left--) {
            lock(job);
            assertContains("\"retries\":" + left + ",\"message\":\"as wished\"", run(job));
            assertContains(left > 0 ? "\"fate\":\"retry\"" : "\"fate\":\"dead-letter\"", settle(job));
            assertEquals(left, job(job.getProcessInstanceId()).getRetries());
        }
        ask("retry", "{\"id\":\"%s\",\"retries\":5}".formatted(job.getId()));
        assertEquals(5, job(job.getProcessInstanceId()).getRetries());
    }
}
