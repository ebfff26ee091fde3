package dev.jobwire.endpoint;

import dev.jobwire.Json;
import dev.jobwire.tables.Locks;
import java.io.IOException;
import java.io.InputStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The requests that run a list of jobs: reads the list, and writes a line about each job. */
final class ListRequests {
    private static final Logger LOG = LoggerFactory.getLogger(ListRequests.class);
    /** Maximum length of the message of an error. */
    private static final int MESSAGE_CHARACTERS = 1_000;
    /** Maximum number of jobs of a node that run at once. */
    private static final long MOST_AT_ONCE = 1_000;
    private static final long LONGEST_WAIT = 60_000;
    private static final long MOST_FENCES = Long.MAX_VALUE / 2;

    /** Runs a job of a list. */
    interface Runs {
        /**
         * Returns the fields of the state of the job; empty if the caller has not locked it.
         *
         * @param lease the lease of the list, in milliseconds; null if it has none
         */
        Optional<Map<String, Object>> run(String job, CallerLock lock, Long lease);
    }

    /** Whether the engine extends the locks of a list while its jobs run. */
    enum Extension {
        /** The list has no lease. */
        NONE,
        /** The list has a lease. */
        BY_LEASE
    }

    private final JobLists lists;

    ListRequests(Runs runs) {
        this.lists = new JobLists(new JobLists.Work() {
            @Override
            public String run(JobLists.Locked locked) {
                return line(runs, locked);
            }

            @Override
            public String notBegun(String job) {
                return Json.of(Map.of("job", job, "status", 200, "state", "not begun"));
            }

            @Override
            public String withoutAnswer(String job) {
                return Json.of(Map.of("job", job, "status", 500, "message", "the execution failed"));
            }
        });
    }

    /**
     * Runs the jobs of a list. Returns the error of an invalid request; empty when all lines are
     * written.
     *
     * @throws IOException if the caller has disconnected
     */
    Optional<ExecutionEndpoint.Answer> answer(
            InputStream body,
            String instance,
            Extension extension,
            ExecutionEndpoint.Answers answers)
            throws IOException {
        JobLists.JobList list;
        try {
            list = list(Arguments.of(Body.text(body)), CallerLock.named(instance), extension);
        } catch (Arguments.BadRequest bad) {
            return Optional.of(ExecutionEndpoint.error(400, bad.getMessage()));
        }
        lists.run(list, answers.begin());
        return Optional.empty();
    }

    private static JobLists.JobList list(
            Arguments arguments, Optional<CallerLock> lock, Extension extension) {
        boolean holds = lock.map(CallerLock::holdsInstance).orElseThrow(
                () -> new Arguments.BadRequest("instance must be held, or left out"));
        String node = arguments.node();
        Long lease = extension == Extension.BY_LEASE
                ? arguments.number("lease", 1, JobEndpoint.LONGEST_LEASE)
                : null;
        return new JobLists.JobList(
                node,
                (int) arguments.number("at_once", 1, MOST_AT_ONCE),
                arguments.number("within", 1, LONGEST_WAIT),
                arguments.objects("jobs").stream()
                        .map(job -> new JobLists.Locked(
                                job.text("id"), new CallerLock(holds, owner(node, job)), lease))
                        .toList());
    }

    private static String owner(String node, Arguments job) {
        return Locks.OURS + node + ":" + job.number("fence", 0, MOST_FENCES);
    }

    /** Cuts a message: a line with a document in it would be too long for the caller. */
    private static String cut(String message) {
        return message.length() <= MESSAGE_CHARACTERS ? message : message.substring(0, MESSAGE_CHARACTERS);
    }

    /** Runs a job of a list and returns its line. */
    private static String line(Runs runs, JobLists.Locked locked) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("job", locked.job());
        long began = System.nanoTime();
        try {
            Optional<Map<String, Object>> became =
                    runs.run(locked.job(), locked.lock(), locked.lease());
            line.put("status", became.isPresent() ? 200 : 404);
            became.ifPresentOrElse(
                    line::putAll,
                    () -> line.put("message", "the node has locked no such executable job"));
        } catch (Throwable failed) {
            // Every job of a list gets its line, as each request gets its answer.
            line.put("status", 500);
            line.put("message", cut(failed.toString()));
            LOG.warn("job {} could not be executed", locked.job(), failed);
        }
        line.put("micros", (System.nanoTime() - began) / 1_000);
        return Json.of(line);
    }
}
