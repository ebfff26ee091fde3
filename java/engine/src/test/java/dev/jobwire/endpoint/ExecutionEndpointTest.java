package dev.jobwire.endpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
