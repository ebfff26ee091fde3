package dev.jobwire.hints;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class HintPublisherTest {
    /** A broker that a test switches off and on. Each publication needs a permit. */
    private static final class SwitchedBroker implements Broker {
        private final Semaphore permits = new Semaphore(0);
        private final LinkedBlockingQueue<List<Hint>> published = new LinkedBlockingQueue<>();
        private final Semaphore asked = new Semaphore(0);
        private volatile boolean isAway;
        private volatile int lost;

        @Override
        public void connect() {}

        @Override
        public int publish(List<Hint> hints) throws BrokerException, InterruptedException {
            asked.release();
            if (isAway) {
                throw new BrokerException("away", null);
            }
            permits.acquire();
            published.add(hints);
            return lost;
        }

        @Override
        public void tell(byte[] message) {}

        @Override
        public void close() {}
    }

    private final SwitchedBroker broker = new SwitchedBroker();

    private HintPublisher publisher(int buffer, Duration age) {
        HintSettings settings = HintSettings.builder("flowable")
                .brokerUrl("amqp://localhost")
                .hintBuffer(buffer)
                .hintMaxAge(age)
                .build();
        HintPublisher publisher = new HintPublisher(settings, broker);
        publisher.start();
        return publisher;
    }

    private static String job() {
        return UUID.randomUUID().toString();
    }

    @Test
    void hintsThatWaitLeaveTogether() throws InterruptedException {
        try (HintPublisher hints = publisher(100, Duration.ofMinutes(1))) {
            hints.ready(job(), "a");
            broker.asked.acquire();
            for (int n = 0; n < 10; n++) {
                hints.ready(job(), "a");
            }
            broker.permits.release(2);
            assertEquals(1, broker.published.poll(30, TimeUnit.SECONDS).size());
            assertEquals(10, broker.published.poll(30, TimeUnit.SECONDS).size());
        }
    }

    @Test
    void aFullBufferDropsAndNoCallerWaits() throws InterruptedException {
        HintPublisher hints = publisher(3, Duration.ofMinutes(1));
        hints.ready(job(), null);
        broker.asked.acquire();
        for (int n = 0; n < 5; n++) {
            hints.ready(job(), null);
        }
        assertEquals(2, hints.counts().dropped(DropReason.FULL));
        broker.permits.release(10);
        hints.close();
        assertEquals(4, hints.counts().published());
        assertEquals(2, hints.counts().dropped());
    }

    @Test
    void aHintSurvivesABrokerThatComesBackInTime() throws InterruptedException {
        try (HintPublisher hints = publisher(100, Duration.ofMinutes(1))) {
            broker.isAway = true;
            hints.ready(job(), "a");
            broker.asked.acquire(2);
            broker.isAway = false;
            broker.permits.release(1);
            assertEquals(1, broker.published.poll(30, TimeUnit.SECONDS).size());
        }
    }

    @Test
    void aHintThatIsTooOldIsDropped() throws InterruptedException {
        HintPublisher hints = publisher(100, Duration.ofMillis(100));
        broker.isAway = true;
        hints.ready(job(), "a");
        while (hints.counts().dropped(DropReason.TOO_OLD) == 0) {
            broker.asked.tryAcquire(10, TimeUnit.MILLISECONDS);
        }
        hints.close();
        assertEquals(0, hints.counts().published());
    }

    @Test
    void aLaneThatNoNodeHasReceivedIsCounted() {
        broker.lost = 1;
        broker.permits.release(1);
        HintPublisher hints = publisher(100, Duration.ofMinutes(1));
        hints.ready(job(), "a");
        hints.close();
        assertEquals(1, hints.counts().dropped(DropReason.NO_LANE));
        assertEquals(0, hints.counts().published());
    }

    @Test
    void whatAUserCannotNameIsCountedAndAfterTheEndNothingIsTaken() {
        HintPublisher hints = publisher(100, Duration.ofMinutes(1));
        hints.ready("order-17", "a");
        hints.close();
        hints.ready(job(), "a");
        assertEquals(1, hints.counts().dropped(DropReason.UNKNOWN_ID));
        assertEquals(1, hints.counts().dropped(DropReason.CLOSED));
        assertTrue(hints.counts().published() == 0);
    }
}
