package dev.jobwire.endpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

class ExecutionEndpointTest {
    private static ExecutionEndpoint.Answer answer(JobRunner runner) {
        return new ExecutionEndpoint(runner).execute("17", null);
    }

    @Test
    void theAnswerSaysWhatBecameOfTheJob() {
        ExecutedJob failed =
                new ExecutedJob(ExecutedJob.State.DEAD_LETTER, "17", 0, "said \"no\"\n");
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"state\":\"dead letter\",\"id\":\"17\","
                        + "\"retries\":0,\"message\":\"said \\\"no\\\"\\u000a\"}"),
                answer((job, lock) -> Optional.of(failed)));
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"state\":\"gone\"}"),
                answer((job, lock) -> Optional.of(ExecutedJob.gone())));
    }

    /** Nodes leave the lock of an execution that is under way, until it expires. */
    @Test
    void aFailureThatCouldNotBeRecordedIsToldAsAnExecutionUnderWay() {
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"state\":\"running\",\"id\":\"17\"}"),
                answer((job, lock) -> Optional.of(ExecutedJob.unrecorded("17"))));
    }

    @Test
    void theScopeNamesTheCategories() {
        JobRunner all = (job, lock) -> Optional.empty();
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"categories\":null}"),
                new ExecutionEndpoint(all).scope(false));
        JobRunner some = new JobRunner() {
            @Override
            public Optional<ExecutedJob> run(String job, CallerLock lock) {
                return Optional.empty();
            }

            @Override
            public Optional<Collection<String>> categories() {
                return Optional.of(List.of("red", "\"blue\""));
            }
        };
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"categories\":[\"red\",\"\\\"blue\\\"\"]}"),
                new ExecutionEndpoint(some).scope(false));
    }

    @Test
    void theScopeSaysThatInstancesCanBeHeld() {
        JobRunner runner = new JobRunner() {
            @Override
            public Optional<ExecutedJob> run(String job, CallerLock lock) {
                return Optional.empty();
            }

            @Override
            public boolean takesHeldInstances() {
                return true;
            }
        };
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"categories\":null,\"instance\":\"held\"}"),
                new ExecutionEndpoint(runner).scope(false));
    }

    @Test
    void theScopeSaysHowManyJobsAListHas() {
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"categories\":null,\"list\":200}"),
                new ExecutionEndpoint((job, lock) -> Optional.empty()).scope(true));
        assertEquals(
                new ExecutionEndpoint.Answer(
                        200, "{\"categories\":null,\"list\":200,\"run_list\":200}"),
                new ExecutionEndpoint((job, lock) -> Optional.empty()).scope(true, true));
    }

    @Test
    void aJobThatIsNotExecutableIsNotFound() {
        assertEquals(404, answer((job, lock) -> Optional.empty()).status());
    }

    @Test
    void theRequestTellsWhoLocksTheInstance() {
        AtomicReference<CallerLock> seen = new AtomicReference<>();
        ExecutionEndpoint endpoint = new ExecutionEndpoint((job, lock) -> {
            seen.set(lock);
            return Optional.empty();
        });
        endpoint.execute("17", null);
        assertFalse(seen.get().holdsInstance());
        endpoint.execute("17", "held");
        assertTrue(seen.get().holdsInstance());
        assertEquals(400, endpoint.execute("17", "mine").status());
    }

    @Test
    void theRequestNamesTheLockOfTheJob() {
        AtomicReference<CallerLock> seen = new AtomicReference<>();
        ExecutionEndpoint endpoint = new ExecutionEndpoint((job, lock) -> {
            seen.set(lock);
            return Optional.empty();
        });
        String owner = "jobwire:0198c0de-7777-7000-8000-000000000001:7";
        ExecutionEndpoint.Answer answer = endpoint.execute("17", "held", owner);
        assertEquals(404, answer.status());
        assertTrue(answer.json().contains("that the node has locked"), answer.json());
        assertEquals(new CallerLock(true, owner), seen.get());
        endpoint.execute("17", null, owner);
        assertEquals(new CallerLock(false, owner), seen.get());
        ExecutionEndpoint.Answer refused = endpoint.execute("17", null, "the engine");
        assertEquals(400, refused.status());
        assertTrue(refused.json().contains("owner"), refused.json());
    }

    /** Runs no job, and has one dead letter, which another transaction changes at the second time. */
    private static final class Operator implements JobRunner, JobOperator {
        private final List<String> changes = new ArrayList<>();

        @Override
        public Optional<ExecutedJob> run(String job, CallerLock lock) {
            return Optional.empty();
        }

        @Override
        public boolean retry(String job, int retries) {
            changes.add("retry " + job + " " + retries);
            if (changes.size() > 1) {
                throw new IllegalStateException("a conflict");
            }
            return true;
        }

        @Override
        public boolean delete(String job) {
            changes.add("delete " + job);
            return false;
        }
    }

    private static ExecutionEndpoint.Answer operate(
            JobRunner runner, String operation, String body) {
        InputStream stream = new ByteArrayInputStream(body.getBytes(StandardCharsets.UTF_8));
        return new ExecutionEndpoint(runner).operate(operation, stream);
    }

    @Test
    void anOperatorsChangeIsMadeAndItsFailureIsAnAnswer() {
        Operator operator = new Operator();
        String request = "{\"id\":\"17\",\"retries\":3}";
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"found\":true}"),
                operate(operator, "retry", request));
        assertEquals(500, operate(operator, "retry", request).status());
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"found\":false}"),
                operate(operator, "delete", request));
        assertEquals(List.of("retry 17 3", "retry 17 3", "delete 17"), operator.changes);
    }

    @Test
    void anInvalidOrUnknownOperationChangesNothing() {
        Operator operator = new Operator();
        ExecutionEndpoint.Answer refused = operate(operator, "retry", "{\"id\":\"17\"}");
        assertEquals(400, refused.status());
        assertTrue(refused.json().contains("`retries`"), refused.json());
        assertEquals(404, operate(operator, "lock", "{}").status());
        assertEquals(List.of(), operator.changes);
    }

    /** A runner of an application's own, of an older version. */
    @Test
    void aRunnerThatChangesNoJobsHasNoOperation() {
        JobRunner runner = (job, lock) -> Optional.empty();
        String request = "{\"id\":\"17\",\"retries\":3}";
        assertEquals(404, operate(runner, "retry", request).status());
    }

    @Test
    void aFailureOfTheEngineIsAnAnswer() {
        ExecutionEndpoint.Answer answer = answer((job, lock) -> {
            throw new IllegalStateException("the database is away");
        });
        assertEquals(500, answer.status());
        assertEquals(
                "{\"message\":\"java.lang.IllegalStateException: the database is away\"}",
                answer.json());
    }
}
