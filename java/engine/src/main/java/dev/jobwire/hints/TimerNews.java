package dev.jobwire.hints;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/**
 * Chooses the due dates that the leader is told. It reads the next due date from the database in
 * each leader cycle, so it needs to be told only of timers that are due before that, and only of
 * one that is earlier than those it knows. A message that is lost makes a timer late by at most one
 * leader cycle.
 */
final class TimerNews {
    /** Later timers are left to the leader cycle: an idle leader runs one within 30 seconds. */
    static final Duration SOON = Duration.ofMinutes(2);
    /** How long a due date that was told keeps later ones from being told. */
    static final Duration REMEMBERED = Duration.ofSeconds(1);

    private Instant told = Instant.MAX;
    private Instant toldAt = Instant.MIN;

    /** Returns whether to tell the leader of a timer that was created. */
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
