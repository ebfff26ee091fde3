package dev.jobwire.endpoint;

import dev.jobwire.tables.KeptConnection;
import dev.jobwire.tables.Locks;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The executions that are under way in this engine. An execution continues when its caller has
 * disconnected. So the engine itself extends the lock of each job until the execution ends. When
 * the engine dies, the lock expires.
 */
final class RunningJobs implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(RunningJobs.class);
    private static final long TICK_MILLIS = 250;

    private static final class Lock {
        private final Locks.Running running;
        private volatile long renewedAt = System.nanoTime();

        Lock(Locks.Running running) {
            this.running = running;
        }

        boolean isDue() {
            long passed = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - renewedAt);
            return passed >= running.leaseMillis() / 3;
        }
    }

    private final Locks locks;
    private final KeptConnection connection;
    /** Guards the field below, and keeps the connection open while jobs run. */
    private final Object gate = new Object();
    private boolean isOpen;
    private final Map<String, Lock> running = new ConcurrentHashMap<>();
    private final ScheduledExecutorService renewals =
            Executors.newSingleThreadScheduledExecutor(task -> {
                Thread thread = new Thread(task, "jobwire-renewals");
                thread.setDaemon(true);
                return thread;
            });

    RunningJobs(Locks locks, KeptConnection connection) {
        this.locks = locks;
        this.connection = connection;
        renewals.scheduleWithFixedDelay(
                this::tick, TICK_MILLIS, TICK_MILLIS, TimeUnit.MILLISECONDS);
    }

    /**
     * Enters an execution under this owner's lock. Returns false if one is under way. The first
     * execution takes the connection of the renewals, because executions may fill the pool later.
     */
    boolean enter(String job, String owner, long leaseMillis) {
        Lock lock = new Lock(new Locks.Running(job, owner, leaseMillis));
        if (running.putIfAbsent(owner, lock) != null) {
            return false;
        }
        try {
            synchronized (gate) {
                if (!isOpen) {
                    connection.open();
                    isOpen = true;
                }
            }
            return true;
        } catch (RuntimeException | Error failed) {
            running.remove(owner);
            throw failed;
        }
    }

    /** Records the end of the execution. */
    void leave(String owner) {
        running.remove(owner);
    }

    private void tick() {
        try {
            synchronized (gate) {
                if (running.isEmpty()) {
                    isOpen = false;
                    connection.close();
                    return;
                }
            }
            renewDue();
        } catch (Throwable failed) {
            // The next tick tries again. An error that leaves this method would end all ticks.
            warn(failed);
        }
    }

    private static void warn(Throwable failed) {
        try {
            LOG.warn("the locks of running jobs could not be extended", failed);
        } catch (Throwable untold) {
            // Memory may be short.
        }
    }

    private void renewDue() {
        List<Lock> due = running.values().stream().filter(Lock::isDue).toList();
        if (due.isEmpty()) {
            return;
        }
        long now = System.nanoTime();
        Set<String> extended =
                locks.extend(connection, due.stream().map(lock -> lock.running).toList());
        // A row that another transaction has locked is tried again at the next tick.
        due.stream()
                .filter(lock -> extended.contains(lock.running.id()))
                .forEach(lock -> lock.renewedAt = now);
    }

    @Override
    public void close() {
        renewals.shutdownNow();
        connection.close();
    }
}
