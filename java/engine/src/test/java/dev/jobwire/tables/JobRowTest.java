package dev.jobwire.tables;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import org.junit.jupiter.api.Test;

class JobRowTest {
    private static JobRow job(String message) {
        return new JobRow(
                JobTable.TIMER, "7", 1, "timer", null, null, null, null, null, 3, null, message,
                null, null, null, null, null, null);
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
