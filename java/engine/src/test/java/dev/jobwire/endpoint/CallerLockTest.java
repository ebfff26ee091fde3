package dev.jobwire.endpoint;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class CallerLockTest {
    private static final String NODE = "jobwire:0198c0de-7777-7000-8000-000000000001:7";

    @Test
    void aNamedOwnerCoversItsOwnLockAlone() {
        CallerLock lock = CallerLock.of(NODE);
        assertTrue(lock.covers(NODE));
        assertFalse(lock.covers(NODE + "1"));
        assertFalse(lock.covers(null));
    }

    @Test
    void aHeldInstanceCoversTheLocksOfNodesAlone() {
        CallerLock lock = CallerLock.named("held").orElseThrow();
        assertTrue(lock.covers(NODE));
        assertFalse(lock.covers("0198c0de-7777-7000-8000-000000000001"));
        assertFalse(lock.covers(null));
    }

    @Test
    void theOwnerOfARequestCoversItsOwnLockAlone() {
        for (String instance : new String[] {"held", null}) {
            CallerLock lock = CallerLock.named(instance, NODE).orElseThrow();
            assertTrue(lock.covers(NODE) && lock.needsLock());
            assertFalse(lock.covers("jobwire:0198c0de-7777-7000-8000-000000000002:8"));
            assertFalse(lock.covers(null));
        }
        assertTrue(CallerLock.named("held", NODE).orElseThrow().holdsInstance());
        assertTrue(CallerLock.named(null, "the engine").isEmpty());
        assertTrue(CallerLock.named("mine", NODE).isEmpty());
        assertFalse(CallerLock.named(null, null).orElseThrow().needsLock());
    }

    @Test
    void withoutTheParameterEachRowIsCovered() {
        CallerLock lock = CallerLock.named(null).orElseThrow();
        assertTrue(lock.covers(null));
        assertTrue(lock.covers(NODE));
    }
}
