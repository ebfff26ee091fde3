package dev.jobwire.endpoint;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Runs lists of jobs. Each job runs on a thread of its own, and its answer is written as soon as it
 * ends. A node has a number of jobs that run at once. The others wait here, in the order of their
 * arrival. So the engine has its next job without another request, and a slow job delays no other
 * answer.
 */
final class JobLists {
    /** Maximum number of jobs of all nodes that run at once. */
    private static final int THREADS = 200;
    private static final long IDLE_SECONDS = 30;
    /** The time in which answers gather while all places of a node are taken. */
    private static final long GATHER_MILLIS = 4;

    /** Runs a job and returns its answer, a line of JSON. */
    interface Work {
        String run(Locked job);

        /** Returns the answer about a job that did not begin in time. */
        String notBegun(String job);

        /** Returns the answer about a job whose error can't be told. */
        String withoutAnswer(String job);
    }

    /**
     * A job and the lock under which it runs.
     *
     * @param lease the time by which the lock is extended, in milliseconds; null if it is not
     */
    record Locked(String job, CallerLock lock, Long lease) {}

    /**
     * A list.
     *
     * @param node the node that sends it
     * @param atOnce the number of jobs of the node that run at once
     * @param withinMillis the time after which a job of the list does not begin any more
     */
    record JobList(String node, int atOnce, long withinMillis, List<Locked> jobs) {}

    /** The jobs of a node. The lock of the lists guards the fields. */
    private static final class Node {
        private final ArrayDeque<Run> waiting = new ArrayDeque<>();
        private int atOnce;
        private int running;
    }

    private static final class Run {
        private final Locked job;
        private final BlockingQueue<String> answers;
        /** The answer if no other one can be made. Made beforehand, since memory may be short then. */
        private final String withoutAnswer;
        private boolean hasBegun;

        Run(Locked job, BlockingQueue<String> answers, String withoutAnswer) {
            this.job = job;
            this.answers = answers;
            this.withoutAnswer = withoutAnswer;
        }
    }

    private final Work work;
    private final ThreadPoolExecutor threads;
    private final Map<String, Node> nodes = new HashMap<>();

    JobLists(Work work) {
        this.work = work;
        AtomicInteger number = new AtomicInteger();
        // The class loader of the application, whichever thread begins the first list.
        ClassLoader loader = Thread.currentThread().getContextClassLoader();
        this.threads = new ThreadPoolExecutor(
                0, THREADS, IDLE_SECONDS, TimeUnit.SECONDS, new SynchronousQueue<>(), task -> {
                    Thread thread = new Thread(task, "jobwire-job-" + number.incrementAndGet());
                    thread.setDaemon(true);
                    thread.setContextClassLoader(loader);
                    return thread;
                });
    }

    /**
     * Runs the jobs of a list, and writes each answer with a line feed. Returns when all answers are
     * written, without a flush of the last ones.
     *
     * @throws IOException if the caller has disconnected. Jobs that run continue; the others of the
     *     list do not begin
     */
    void run(JobList list, OutputStream out) throws IOException {
        BlockingQueue<String> answers = new LinkedBlockingQueue<>();
        List<Run> runs = new ArrayList<>();
        list.jobs().forEach(job -> runs.add(new Run(job, answers, work.withoutAnswer(job.job()))));
        Node node = node(list);
        try {
            enter(list, node, runs);
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(list.withinMillis());
            boolean mayBegin = true;
            int open = runs.size();
            while (open > 0) {
                String answer = mayBegin
                        ? answers.poll(until - System.nanoTime(), TimeUnit.NANOSECONDS)
                        : answers.take();
                if (answer == null) {
                    mayBegin = false;
                    for (Run run : cancelled(node, runs)) {
                        write(out, work.notBegun(run.job.job()));
                        open--;
                    }
                } else {
                    if (open > 1 && isFull(node)) {
                        Thread.sleep(GATHER_MILLIS);
                    }
                    for (; answer != null; answer = answers.poll()) {
                        write(out, answer);
                        open--;
                    }
                }
                // The server sends the last lines with the end of the answer.
                if (open > 0) {
                    out.flush();
                }
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw new IOException("the thread of the request was interrupted", stopped);
        } finally {
            cancelled(node, runs);
        }
    }

    private static void write(OutputStream out, String line) throws IOException {
        out.write((line + "\n").getBytes(StandardCharsets.UTF_8));
    }

    private synchronized Node node(JobList list) {
        return nodes.computeIfAbsent(list.node(), name -> new Node());
    }

    private synchronized void enter(JobList list, Node node, List<Run> runs) {
        // Another list of the node may have ended meanwhile.
        nodes.putIfAbsent(list.node(), node);
        node.atOnce = list.atOnce();
        node.waiting.addAll(runs);
        int more = Math.min(node.atOnce - node.running, node.waiting.size());
        for (int at = 0; at < more; at++) {
            try {
                threads.execute(() -> runAll(list.node(), node));
                node.running++;
            } catch (RejectedExecutionException full) {
                // A running thread of the node takes the jobs, or they do not begin in time.
                break;
            }
        }
    }

    private void runAll(String name, Node node) {
        for (Run run = next(name, node); run != null; run = next(name, node)) {
            String answer = run.withoutAnswer;
            // A job that was interrupted may leave the flag set. It would interrupt the next job.
            Thread.interrupted();
            try {
                answer = work.run(run.job);
            } catch (Throwable failed) {
                // Even the error of the job can't be told. The thread goes on with the next job.
            } finally {
                run.answers.add(answer);
            }
        }
    }

    /** Returns the next job of a node; null if this thread of the node ends. */
    private synchronized Run next(String name, Node node) {
        Run run = node.running > node.atOnce ? null : node.waiting.poll();
        if (run == null) {
            node.running--;
            forget(name, node);
        } else {
            run.hasBegun = true;
        }
        return run;
    }

    private void forget(String name, Node node) {
        if (node.running == 0 && node.waiting.isEmpty()) {
            nodes.remove(name, node);
        }
    }

    /** Takes back the jobs that have not begun, and returns them. */
    private synchronized List<Run> cancelled(Node node, List<Run> runs) {
        List<Run> cancelled = new ArrayList<>();
        for (Run run : runs) {
            if (!run.hasBegun && node.waiting.remove(run)) {
                cancelled.add(run);
            }
        }
        nodes.values().removeIf(other -> other.running == 0 && other.waiting.isEmpty());
        return cancelled;
    }

    private synchronized boolean isFull(Node node) {
        return node.running >= node.atOnce;
    }
}
