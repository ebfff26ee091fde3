package dev.jobwire.endpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Set;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;

class ArgumentsTest {
    @Test
    void fieldsAreReadAndMissingOnesAreNull() {
        Arguments arguments = Arguments.of(
                "{\"id\":\"7\",\"lease\":30000,\"unanswered\":true,\"known\":[\"a\",\"a\"],"
                        + "\"jobs\":[{\"id\":\"8\"}],\"take\":null,\"more\":{}}");
        assertEquals("7", arguments.text("id"));
        assertEquals(30_000, arguments.number("lease", 1, 100_000));
        assertTrue(arguments.flag("unanswered"));
        assertEquals(Set.of("a"), arguments.texts("known"));
        assertEquals("8", arguments.objects("jobs").get(0).text("id"));
        assertNull(arguments.optionalObject("take"));
        assertNull(arguments.optionalTexts("tenants"));
        assertNull(Arguments.of("").optional("id"));
    }

    @Test
    void aFieldThatCanNotBeUsedIsNamed() {
        refused("{}", "`id`", arguments -> arguments.text("id"));
        refused("{\"id\":7}", "`id`", arguments -> arguments.text("id"));
        refused("{\"id\":\"" + "x".repeat(401) + "\"}", "`id`", a -> a.text("id"));
        refused("{\"lease\":0}", "`lease`", arguments -> arguments.number("lease", 1, 9));
        refused("{\"lease\":1.5}", "`lease`", arguments -> arguments.number("lease", 1, 9));
        refused("{\"node\":\"%\"}", "`node`", Arguments::node);
        refused("{\"flag\":1}", "`flag`", arguments -> arguments.flag("flag"));
        refused("{\"known\":[1]}", "`known`", arguments -> arguments.texts("known"));
        refused("{\"jobs\":7}", "`jobs`", arguments -> arguments.objects("jobs"));
        refused("{\"jobs\":[7]}", "object", arguments -> arguments.objects("jobs"));
        String many = "[" + "{},".repeat(Arguments.MOST) + "{}]";
        refused("{\"jobs\":" + many + "}", "`jobs`", arguments -> arguments.objects("jobs"));
        refused("[]", "object", arguments -> {});
        refused("{", "JSON", arguments -> {});
    }

    private static void refused(String body, String said, Consumer<Arguments> use) {
        Arguments.BadRequest refused = assertThrows(
                Arguments.BadRequest.class, () -> use.accept(Arguments.of(body)), body);
        assertTrue(refused.getMessage().contains(said), refused.getMessage());
    }
}
