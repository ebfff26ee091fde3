package dev.jobwire.hints;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import org.junit.jupiter.api.Test;

class TimerNewsTest {
    private static final Instant NOW = Instant.parse("2026-11-25T18:00:00Z");

    @Test
    void onlyAnEarlierTimerIsNewsWhileTheLastOneIsRemembered() {
        TimerNews news = new TimerNews();
        assertTrue(news.isNews(NOW.plusSeconds(30), NOW));
        assertFalse(news.isNews(NOW.plusSeconds(30), NOW));
        assertFalse(news.isNews(NOW.plusSeconds(40), NOW.plusMillis(900)));
        assertTrue(news.isNews(NOW.plusSeconds(20), NOW.plusMillis(900)));
        assertTrue(news.isNews(NOW.plusSeconds(40), NOW.plusSeconds(2)));
    }

    @Test
    void aTimerThatIsDueHidesNoOther() {
        TimerNews news = new TimerNews();
        assertTrue(news.isNews(NOW.plusMillis(100), NOW));
        assertTrue(news.isNews(NOW.plusSeconds(1), NOW.plusMillis(200)));
    }

    @Test
    void aTimerOfTheFarFutureIsLeftToTheLeaderCycle() {
        assertFalse(new TimerNews().isNews(NOW.plus(TimerNews.SOON).plusSeconds(1), NOW));
        assertTrue(new TimerNews().isNews(NOW.minusSeconds(60), NOW));
    }

    @Test
    void theMessageIsAControlMessageOfTheNodes() {
        byte[] message = TimerNews.message(NOW.plusNanos(1_234_567));
        assertEquals(
                "{\"say\":\"timer-set\",\"due\":\"2026-11-25T18:00:00.001234Z\"}",
                new String(message, StandardCharsets.UTF_8));
    }
}
