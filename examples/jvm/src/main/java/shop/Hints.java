package shop;

import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.context.SmartLifecycle;
import org.springframework.stereotype.Component;

/**
 * Sends hints, and never lets a commit wait for the broker: while afterCommit runs, its database
 * connection is still taken. What does not fit into the queue, or fails, is dropped. Jobwire's
 * sweeper finds those jobs.
 */
@Component
public class Hints implements SmartLifecycle {
    private static final Logger log = LoggerFactory.getLogger(Hints.class);

    private final Lanes lanes;
    private volatile boolean running;
    private final ThreadPoolExecutor sender =
            new ThreadPoolExecutor(
                    1, 1, 0, TimeUnit.SECONDS, new ArrayBlockingQueue<>(10_000));

    Hints(Lanes lanes) {
        this.lanes = lanes;
    }

    /** An exception here would reach the caller of a transaction that did commit. */
    void send(Job job) {
        long committedAt = Hint.now();
        try {
            sender.execute(() -> publish(job, committedAt));
        } catch (RejectedExecutionException full) {
            log.warn("no hint for job {}: too many wait for the broker", job.id());
        }
    }

    private void publish(Job job, long committedAt) {
        try {
            lanes.publish(job, Hint.encode(job, committedAt));
        } catch (RuntimeException lost) {
            log.warn("no hint for job {}: {}", job.id(), lost.toString());
        }
    }

    @Override
    public void start() {
        running = true;
    }

    /** What was committed is still sent. */
    @Override
    public void stop() {
        running = false;
        sender.shutdown();
        try {
            sender.awaitTermination(20, TimeUnit.SECONDS);
        } catch (InterruptedException hurry) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public boolean isRunning() {
        return running;
    }

    /** Higher phases stop first: after the web server's, before the producers' (the lowest). */
    @Override
    public int getPhase() {
        return 0;
    }
}
