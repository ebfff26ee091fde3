package dev.jobwire.hints;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/**
 * Chooses the due dates that are sent to the leader. The leader reads the next due date from the
 * database in each leader cycle, so it needs only timers that are due before the next cycle. Of
 * these it needs only a timer that is earlier than the last one. A lost message makes a timer late
 * by at most one leader cycle.
 */
final class TimerNews {
    /** The leader cycle finds later timers: an idle leader runs one within 30 seconds. */
    static final Duration SOON = Duration.ofMinutes(2);
    /** The time for which a sent due date suppresses later due dates. */
    static final Duration REMEMBERED = Duration.ofSeconds(1);

    private Instant told = Instant.MAX;
    private Instant toldAt = Instant.MIN;

    /** Returns whether to send a new timer to the leader. */
    boolean isNews(Instant due, Instant now) {
        if (due.isAfter(now.plus(SOON))) {
            return false;
        }
        boolean isKnown = now.isBefore(toldAt.plus(REMEMBERED))
                && told.isAfter(now)
                && !due.isBefore(told);
        if (isKnown) {
            return false;
        }
        told = due;
        toldAt = now;
        return true;
    }

    /** Returns the control message. */
    static byte[] message(Instant due) {
        String at = due.truncatedTo(ChronoUnit.MICROS).toString();
        return ("{\"say\":\"timer-set\",\"due\":\"" + at + "\"}").getBytes(StandardCharsets.UTF_8);
    }
}
