package dev.jobwire.hints;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.UUID;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class HintMessageTest {
    private static List<Hint> hints(int count, String instance) {
        return IntStream.range(0, count)
                .mapToObj(n -> new Hint(UUID.randomUUID(), instance, n))
                .toList();
    }

    @Test
    void hintsArePackedUpToTheLimit() {
        List<HintMessage> messages = HintMessage.pack(hints(35, "order-17"), 16, 1);
        assertEquals(List.of(16, 16, 3), messages.stream().map(HintMessage::hints).toList());
    }

    @Test
    void noMessageIsTooLargeForAReader() {
        // Each of these characters takes six bytes.
        List<HintMessage> messages =
                HintMessage.pack(hints(512, "\u0001".repeat(1_000)), 512, 1);
        assertTrue(messages.size() > 1);
        assertEquals(512, messages.stream().mapToInt(HintMessage::hints).sum());
        for (HintMessage message : messages) {
            assertTrue(message.text().length <= HintMessage.MOST_BYTES);
        }
    }

    @Test
    void anInstanceThatNoJobCanHaveIsLeftOut() {
        for (String instance : List.of("x".repeat(1_025), "a\0b")) {
            byte[] text = HintMessage.pack(hints(1, instance), 16, 1).get(0).text();
            assertFalse(new String(text, StandardCharsets.UTF_8).contains("\"i\""));
        }
    }
}
