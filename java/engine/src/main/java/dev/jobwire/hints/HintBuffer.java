package dev.jobwire.hints;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A bounded buffer of hints that wait to be published, and of the earliest due date for the leader.
 * The callers of {@link #add} and {@link #addTimer} never wait.
 */
final class HintBuffer {
    /**
     * Hints and a due date that are taken together.
     *
     * @param hints the oldest hints
     * @param due the due date of a new timer; null if there is none
     */
    record Taken(List<Hint> hints, Instant due) {}

    private final int most;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private final ArrayDeque<Hint> hints = new ArrayDeque<>();
    private Instant due;
    private boolean isClosed;

    HintBuffer(int most) {
        this.most = most;
    }

    /** Adds a hint; returns false if the buffer is full or closed. */
    boolean add(Hint hint) {
        lock.lock();
        try {
            if (isClosed || hints.size() >= most) {
                return false;
            }
            hints.add(hint);
            changed.signal();
            return true;
        } finally {
            lock.unlock();
        }
    }

    /** Adds a due date. The buffer keeps the earliest one. */
    void addTimer(Instant at) {
        lock.lock();
        try {
            if (!isClosed && (due == null || at.isBefore(due))) {
                due = at;
                changed.signal();
            }
        } finally {
            lock.unlock();
        }
    }

    /** Waits for hints or a due date and takes them; null if the buffer is closed and empty. */
    Taken take(int atMost) throws InterruptedException {
        lock.lockInterruptibly();
        try {
            while (hints.isEmpty() && due == null) {
                if (isClosed) {
                    return null;
                }
                changed.await();
            }
            List<Hint> taken = new ArrayList<>(Math.min(atMost, hints.size()));
            while (taken.size() < atMost && !hints.isEmpty()) {
                taken.add(hints.remove());
            }
            Instant told = due;
            due = null;
            return new Taken(taken, told);
        } finally {
            lock.unlock();
        }
    }

    /** Waits for this time, or until the buffer is closed. */
    void pause(Duration pause) throws InterruptedException {
        long left = pause.toNanos();
        lock.lockInterruptibly();
        try {
            while (left > 0 && !isClosed) {
                left = changed.awaitNanos(left);
            }
        } finally {
            lock.unlock();
        }
    }

    /** Refuses all further hints. */
    void close() {
        lock.lock();
        try {
            isClosed = true;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    boolean isClosed() {
        lock.lock();
        try {
            return isClosed;
        } finally {
            lock.unlock();
        }
    }

    int size() {
        lock.lock();
        try {
            return hints.size();
        } finally {
            lock.unlock();
        }
    }
}
