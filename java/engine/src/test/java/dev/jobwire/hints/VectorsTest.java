package dev.jobwire.hints;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.Test;

/** Compares messages and partitions with docs/reference/hint-vectors.json. */
class VectorsTest {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long COMMITTED = 1_763_695_885_120_000L;

    private static JsonNode vectors() throws IOException {
        return JSON.readTree(Path.of(System.getProperty("vectors")).toFile());
    }

    @Test
    void everyMeaningOfTheVectorsIsWrittenAsAMessageThatMeansTheSame() throws IOException {
        int written = 0;
        for (String list : List.of("messages", "encoded")) {
            for (JsonNode vector : vectors().get(list)) {
                JsonNode meant = vector.path("means").path("hints");
                if (meant.isArray()) {
                    check(vector.get("name").asText(), ofAnEngine((ArrayNode) meant));
                    written++;
                }
            }
        }
        assertTrue(written >= 10, "the vectors have too few messages with hints: " + written);
    }

    /** Returns the hints with only the fields that an engine's hint has. */
    private static ArrayNode ofAnEngine(ArrayNode meant) {
        ArrayNode hints = JSON.createArrayNode();
        for (JsonNode hint : meant) {
            ObjectNode own = hint.deepCopy();
            own.remove(List.of("t", "y"));
            if (!own.has("c")) {
                own.put("c", COMMITTED);
            }
            // A parser of the message reads a number as an int if it fits.
            own.set("c", own.get("c").canConvertToInt()
                    ? JSON.getNodeFactory().numberNode(own.get("c").asInt())
                    : JSON.getNodeFactory().numberNode(own.get("c").asLong()));
            hints.add(own);
        }
        return hints;
    }

    private static void check(String name, ArrayNode meant) throws IOException {
        List<Hint> hints = new ArrayList<>();
        for (JsonNode hint : meant) {
            hints.add(new Hint(
                    UUID.fromString(hint.get("id").asText()),
                    hint.has("i") ? hint.get("i").asText() : null,
                    hint.get("c").asLong()));
        }
        List<HintMessage> messages = HintMessage.pack(hints, HintMessage.MOST_HINTS, 17);
        assertEquals(1, messages.size(), name);
        JsonNode message = JSON.readTree(messages.get(0).text());
        assertEquals(1, message.get("v").asInt());
        assertEquals(17, message.get("at").asLong());
        assertEquals(meant, message.get("hints"), name);
    }

    @Test
    void keysHashToThePartitionsOfTheVectors() throws IOException {
        JsonNode vectors = vectors().get("partitions");
        assertTrue(vectors.size() >= 5);
        for (JsonNode vector : vectors) {
            String key = vector.get("key").asText();
            int hash = KafkaPartitions.hash(key.getBytes(StandardCharsets.UTF_8));
            assertEquals(vector.get("murmur2").asInt(), hash, key);
            vector.get("partition").properties().forEach(expected -> {
                int partitions = Integer.parseInt(expected.getKey());
                assertEquals(
                        expected.getValue().asInt(), KafkaPartitions.of(key, partitions), key);
            });
        }
    }
}
