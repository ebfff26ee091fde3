package dev.jobwire.hints;

import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** The time of this machine. */
final class Clock {
    private Clock() {}

    /** Returns microseconds since 1970. */
    static long micros() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }
}
