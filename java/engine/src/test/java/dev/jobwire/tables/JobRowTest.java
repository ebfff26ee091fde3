package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Instant;
import org.junit.jupiter.api.Test;

class JobRowTest {
    private static JobRow job(String message) {
        return job(message, null, null);
    }

    private static JobRow job(String message, String owner, Instant lockedUntil) {
        return new JobRow(
                JobTable.TIMER, "7", 1, "timer", null, null, null, null, null, 3, null, message,
                null, null, null, null, owner, lockedUntil);
    }

    @Test
    void anOwnerWithoutAnExpiryHoldsNoLock() {
        assertFalse(job(null, "engine", null).isLocked());
        assertTrue(job(null, "engine", Instant.EPOCH).isLocked());
    }

    @Test
    void aMessageIsCutOrLeftOut() {
        assertEquals("abc", job("abcd").withMessage(3).message());
        assertEquals("abcd", job("abcd").withMessage(4).message());
        assertFalse(job("abcd").withMessage(0).fields().containsKey("message"));
    }

    @Test
    void aCharacterOfTwoHalvesIsNotCutInTheMiddle() {
        assertEquals("ab", job("ab\uD83D\uDE00").withMessage(3).message());
    }
}
