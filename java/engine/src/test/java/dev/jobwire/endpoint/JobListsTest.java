package dev.jobwire.endpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

class JobListsTest {
    private static final String NODE = "0198c0de-7777-7000-8000-000000000001";

    private static InputStream body(int atOnce, int within, String... jobs) {
        List<String> locked = new ArrayList<>();
        for (String job : jobs) {
            locked.add("{\"id\":\"" + job + "\",\"fence\":7}");
        }
        String body = "{\"node\":\"" + NODE + "\",\"at_once\":" + atOnce + ",\"within\":" + within
                + ",\"jobs\":[" + String.join(",", locked) + "]}";
        return new ByteArrayInputStream(body.getBytes(StandardCharsets.UTF_8));
    }

    /** Returns the lines without the durations. */
    private static List<String> lines(JobRunner runner, InputStream body) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        Optional<ExecutionEndpoint.Answer> refused =
                new ExecutionEndpoint(runner).executeAll(body, "held", () -> out);
        assertTrue(refused.isEmpty(), refused.toString());
        return out.toString(StandardCharsets.UTF_8)
                .replaceAll(",\"micros\":[0-9]+", "")
                .lines()
                .sorted()
                .toList();
    }

    @Test
    void eachJobHasALineUnderItsOwnLock() throws Exception {
        List<String> owners = new CopyOnWriteArrayList<>();
        JobRunner runner = (job, lock) -> {
            owners.add(lock.owner());
            assertTrue(lock.holdsInstance());
            return switch (job) {
                case "1" -> Optional.of(ExecutedJob.gone());
                case "2" -> Optional.empty();
                default -> throw new IllegalStateException("no database");
            };
        };
        assertEquals(
                List.of(
                        "{\"job\":\"1\",\"status\":200,\"state\":\"gone\"}",
                        "{\"job\":\"2\",\"status\":404,\"message\":"
                                + "\"the node has locked no such executable job\"}",
                        "{\"job\":\"3\",\"status\":500,\"message\":"
                                + "\"java.lang.IllegalStateException: no database\"}"),
                lines(runner, body(2, 1_000, "1", "2", "3")));
        String owner = "jobwire:" + NODE + ":7";
        assertEquals(List.of(owner, owner, owner), owners);
    }

    @Test
    void aSlowJobDelaysNoOtherAnswer() throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        JobRunner runner = (job, lock) -> {
            if (job.equals("slow")) {
                await(end);
            }
            return Optional.of(ExecutedJob.gone());
        };
        BlockingQueue<String> answered = new LinkedBlockingQueue<>();
        ByteArrayOutputStream out = new ByteArrayOutputStream() {
            @Override
            public void flush() {
                answered.add(toString(StandardCharsets.UTF_8));
                reset();
            }
        };
        ExecutionEndpoint endpoint = new ExecutionEndpoint(runner);
        Thread request = new Thread(() -> {
            try {
                endpoint.executeAll(body(2, 1_000, "slow", "1", "2", "3"), null, () -> out);
            } catch (IOException failed) {
                answered.add(failed.toString());
            }
        });
        request.start();
        StringBuilder quick = new StringBuilder();
        while (quick.toString().lines().count() < 3) {
            quick.append(answered.poll(20, TimeUnit.SECONDS));
        }
        assertFalse(quick.toString().contains("slow"), quick.toString());
        end.countDown();
        request.join();
        // The server sends the last line with the end of the answer.
        assertFalse(answered.toString().contains("slow"), answered.toString());
        assertTrue(out.toString(StandardCharsets.UTF_8).contains("slow"));
    }

    @Test
    void aJobThatWasInterruptedInterruptsNoOther() throws Exception {
        List<Boolean> interrupted = new CopyOnWriteArrayList<>();
        JobRunner runner = (job, lock) -> {
            interrupted.add(Thread.currentThread().isInterrupted());
            Thread.currentThread().interrupt();
            return Optional.of(ExecutedJob.gone());
        };
        lines(runner, body(1, 10_000, "1", "2", "3"));
        assertEquals(List.of(false, false, false), interrupted);
    }

    @Test
    void aNodeHasItsNumberOfJobsAtOnce() throws Exception {
        AtomicInteger running = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        JobRunner runner = (job, lock) -> {
            most.accumulateAndGet(running.incrementAndGet(), Math::max);
            pause(5);
            running.decrementAndGet();
            return Optional.of(ExecutedJob.gone());
        };
        String[] jobs = new String[30];
        for (int at = 0; at < jobs.length; at++) {
            jobs[at] = Integer.toString(at);
        }
        assertEquals(30, lines(runner, body(3, 10_000, jobs)).size());
        assertEquals(3, most.get());
    }

    @Test
    void aJobThatCanNotBeginInTimeIsNotRun() throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        List<String> ran = new CopyOnWriteArrayList<>();
        JobRunner runner = (job, lock) -> {
            ran.add(job);
            await(end);
            return Optional.of(ExecutedJob.gone());
        };
        Thread later = new Thread(() -> {
            pause(300);
            end.countDown();
        });
        later.start();
        List<String> lines = lines(runner, body(1, 50, "1", "2"));
        assertTrue(lines.get(1).contains("\"state\":\"not begun\""), lines.toString());
        assertTrue(lines.get(1).contains("\"job\":\"2\""), lines.toString());
        assertEquals(List.of("1"), ran);
        later.join();
    }

    @Test
    void afterADisconnectionNoFurtherJobBegins() {
        List<String> ran = new CopyOnWriteArrayList<>();
        JobRunner runner = (job, lock) -> {
            ran.add(job);
            pause(30);
            return Optional.of(ExecutedJob.gone());
        };
        OutputStream broken = new OutputStream() {
            @Override
            public void write(int written) throws IOException {
                throw new IOException("disconnected");
            }
        };
        ExecutionEndpoint endpoint = new ExecutionEndpoint(runner);
        assertThrows(IOException.class, () -> endpoint.executeAll(
                body(1, 10_000, "1", "2", "3", "4", "5", "6"), null, () -> broken));
        int then = ran.size();
        assertTrue(then < 6, ran.toString());
        pause(100);
        assertTrue(ran.size() <= then, ran.toString());
    }

    @Test
    void anInvalidListIsRefusedBeforeItsAnswerBegins() throws Exception {
        refused(body(0, 1, "1"), "held", "`at_once`");
        refused(body(1, 0, "1"), "held", "`within`");
        refused(body(1, 1, ""), "held", "`id`");
        refused(body(1, 1, "1"), "mine", "instance");
    }

    private static void refused(InputStream body, String instance, String said)
            throws IOException {
        Optional<ExecutionEndpoint.Answer> refused =
                new ExecutionEndpoint((job, lock) -> Optional.empty())
                        .executeAll(body, instance, () -> {
                            throw new AssertionError("the answer has begun");
                        });
        assertEquals(400, refused.orElseThrow().status());
        assertTrue(refused.get().json().contains(said), refused.get().json());
    }

    private static void await(CountDownLatch end) {
        try {
            assertTrue(end.await(20, TimeUnit.SECONDS));
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }
}
