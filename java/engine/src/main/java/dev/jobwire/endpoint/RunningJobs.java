package dev.jobwire.endpoint;

import dev.jobwire.tables.Locks;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The executions that are under way in this engine. The engine goes on when the caller has gone, so
 * it extends the lock of each job itself, until the execution ends. When the engine dies, the lock
 * expires.
 */
final class RunningJobs implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(RunningJobs.class);
    private static final long TICK_MILLIS = 250;

    private static final class Lock {
        private final String job;
        private final long leaseMillis;
        private volatile long renewedAt = System.nanoTime();

        Lock(String job, long leaseMillis) {
            this.job = job;
            this.leaseMillis = leaseMillis;
        }

        boolean isDue() {
            long passed = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - renewedAt);
            return passed >= leaseMillis / 3;
        }
    }

    private final Locks locks;
    private final Map<String, Lock> running = new ConcurrentHashMap<>();
    private final ScheduledExecutorService renewals =
            Executors.newSingleThreadScheduledExecutor(task -> {
                Thread thread = new Thread(task, "jobwire-renewals");
                thread.setDaemon(true);
                return thread;
            });

    RunningJobs(Locks locks) {
        this.locks = locks;
        renewals.scheduleWithFixedDelay(
                this::renewDue, TICK_MILLIS, TICK_MILLIS, TimeUnit.MILLISECONDS);
    }

    /** Enters an execution under this owner's lock. Returns false if one is under way. */
    boolean enter(String job, String owner, long leaseMillis) {
        return running.putIfAbsent(owner, new Lock(job, leaseMillis)) == null;
    }

    /** The execution has ended. */
    void leave(String owner) {
        running.remove(owner);
    }

    private void renewDue() {
        running.forEach((owner, lock) -> {
            if (!lock.isDue()) {
                return;
            }
            try {
                locks.extend(lock.job, owner, lock.leaseMillis);
                lock.renewedAt = System.nanoTime();
            } catch (RuntimeException failed) {
                // The next tick tries again.
                LOG.warn("the lock of job {} could not be extended", lock.job, failed);
            }
        });
    }

    @Override
    public void close() {
        renewals.shutdownNow();
    }
}
