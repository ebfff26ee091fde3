package dev.jobwire.hints;

import java.time.Duration;
import java.util.OptionalLong;

/** Passes a repeated log line at most every ten seconds. */
final class LogThrottle {
    private static final long PAUSE = Duration.ofSeconds(10).toNanos();

    private long last;
    private boolean isFirst = true;
    private long heldBack;

    /**
     * Returns the number of lines suppressed since the last line; empty if none may be written now.
     */
    synchronized OptionalLong now() {
        long now = System.nanoTime();
        if (!isFirst && now - last < PAUSE) {
            heldBack++;
            return OptionalLong.empty();
        }
        isFirst = false;
        last = now;
        long more = heldBack;
        heldBack = 0;
        return OptionalLong.of(more);
    }
}
