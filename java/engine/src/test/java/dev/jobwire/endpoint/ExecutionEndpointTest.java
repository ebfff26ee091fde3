package dev.jobwire.endpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Collection;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class ExecutionEndpointTest {
    private static ExecutionEndpoint.Answer answer(JobRunner runner) {
        return new ExecutionEndpoint(runner).execute("17");
    }

    @Test
    void theAnswerSaysWhatBecameOfTheJob() {
        ExecutedJob failed =
                new ExecutedJob(ExecutedJob.State.DEAD_LETTER, "17", 0, "said \"no\"\n");
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"state\":\"dead letter\",\"id\":\"17\","
                        + "\"retries\":0,\"message\":\"said \\\"no\\\"\\u000a\"}"),
                answer(job -> Optional.of(failed)));
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"state\":\"gone\"}"),
                answer(job -> Optional.of(ExecutedJob.gone())));
    }

    @Test
    void theScopeNamesTheCategories() {
        JobRunner all = job -> Optional.empty();
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"categories\":null}"),
                new ExecutionEndpoint(all).scope());
        JobRunner some = new JobRunner() {
            @Override
            public Optional<ExecutedJob> run(String job) {
                return Optional.empty();
            }

            @Override
            public Optional<Collection<String>> categories() {
                return Optional.of(List.of("red", "\"blue\""));
            }
        };
        assertEquals(
                new ExecutionEndpoint.Answer(200, "{\"categories\":[\"red\",\"\\\"blue\\\"\"]}"),
                new ExecutionEndpoint(some).scope());
    }

    @Test
    void aJobThatIsNotExecutableIsNotFound() {
        assertEquals(404, answer(job -> Optional.empty()).status());
    }

    @Test
    void aFailureOfTheEngineIsAnAnswer() {
        ExecutionEndpoint.Answer answer = answer(job -> {
            throw new IllegalStateException("the database is away");
        });
        assertEquals(500, answer.status());
        assertEquals(
                "{\"message\":\"java.lang.IllegalStateException: the database is away\"}",
                answer.json());
    }
}
