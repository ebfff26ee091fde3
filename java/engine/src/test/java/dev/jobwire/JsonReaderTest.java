package dev.jobwire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.math.BigDecimal;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class JsonReaderTest {
    @Test
    void whatIsWrittenIsReadAgain() {
        Map<String, Object> value = Map.of(
                "text", "a\"b\\c\n\u00e9\ud83d\ude00",
                "number", new BigDecimal("-12.5"),
                "list", Arrays.asList(true, false, null, List.of(), Map.of()));
        assertEquals(value, JsonReader.read(Json.of(value)));
        assertEquals(value, JsonReader.read(" " + Json.of(value) + "\n"));
    }

    @Test
    void anotherReaderAgreesAboutEscapes() throws Exception {
        String json = "{\"a\\u0041\\/\\b\\f\\n\\r\\t\\\"\\\\\": [\"\\ud83d\\ude00\", 1, -0.5, null]}";
        Object theirs = new ObjectMapper().readValue(json, Object.class);
        assertEquals(
                new ObjectMapper().valueToTree(theirs).toString(),
                new ObjectMapper().valueToTree(JsonReader.read(json)).toString());
    }

    @Test
    void anythingElseIsRefusedAndNothingElseIsThrown() {
        for (String text : List.of(
                "", " ", "{", "}", "[1,]", "{\"a\"}", "{\"a\":}", "{a:1}", "\"", "\"\\", "\"\\u12",
                "\"\\u+123\"", "nul", "01x", "1e9", "--1", "99999999999999999999", "1 2", "{} x",
                "[".repeat(100_000))) {
            assertThrows(JsonReader.BadJson.class, () -> JsonReader.read(text), text);
        }
    }
}
