package dev.jobwire.endpoint;

import dev.jobwire.JsonReader;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The fields of a request. The error of an invalid field names the field. */
final class Arguments {
    /** Maximum number of entries of a list. */
    static final int MOST = 200;
    private static final int LONGEST_TEXT = 400;

    /** Reports the invalid field of a request, and the reason. */
    static final class BadRequest extends IllegalArgumentException {
        private static final long serialVersionUID = 1L;

        BadRequest(String problem) {
            super(problem);
        }
    }

    private final Map<?, ?> fields;

    private Arguments(Object fields) {
        if (!(fields instanceof Map<?, ?> map)) {
            throw new BadRequest("the body must be a JSON object");
        }
        this.fields = map;
    }

    /** Reads a body. An empty body has no fields. */
    static Arguments of(String body) {
        if (body == null || body.isBlank()) {
            return new Arguments(Map.of());
        }
        try {
            return new Arguments(JsonReader.read(body));
        } catch (JsonReader.BadJson bad) {
            throw new BadRequest(bad.getMessage());
        }
    }

    /** Returns a text; null if it is missing. */
    String optional(String name) {
        Object value = fields.get(name);
        if (value == null) {
            return null;
        }
        if (!(value instanceof String text)) {
            throw new BadRequest("`" + name + "` must be a text");
        }
        if (text.length() > LONGEST_TEXT) {
            throw new BadRequest("`" + name + "` has more than " + LONGEST_TEXT + " characters");
        }
        return text;
    }

    String text(String name) {
        String text = optional(name);
        if (text == null || text.isEmpty()) {
            throw new BadRequest("`" + name + "` is missing");
        }
        return text;
    }

    /** Returns the id of a node. Names and patterns contain it. */
    String node() {
        String node = text("node");
        if (!node.matches("[0-9a-f-]{1,40}")) {
            throw new BadRequest("`node` must be a UUID");
        }
        return node;
    }

    /** Returns a whole number between two bounds. */
    long number(String name, long least, long most) {
        Long number = optionalNumber(name);
        if (number == null || number < least || number > most) {
            throw new BadRequest(
                    "`" + name + "` must be a whole number from " + least + " to " + most);
        }
        return number;
    }

    /** Returns a whole number; null if it is missing. */
    Long optionalNumber(String name) {
        Object value = fields.get(name);
        if (value == null) {
            return null;
        }
        if (value instanceof BigDecimal number && number.scale() <= 0) {
            return number.longValue();
        }
        throw new BadRequest("`" + name + "` must be a whole number");
    }

    boolean flag(String name) {
        Object value = fields.get(name);
        if (value == null || value instanceof Boolean) {
            return Boolean.TRUE.equals(value);
        }
        throw new BadRequest("`" + name + "` must be true or false");
    }

    /** Returns texts; null if they are missing. */
    Set<String> optionalTexts(String name) {
        if (fields.get(name) == null) {
            return null;
        }
        Set<String> texts = new LinkedHashSet<>();
        for (Object value : list(name, 10_000)) {
            if (!(value instanceof String text)) {
                throw new BadRequest("`" + name + "` must be a list of texts");
            }
            texts.add(text);
        }
        return texts;
    }

    Set<String> texts(String name) {
        Set<String> texts = optionalTexts(name);
        return texts == null ? Set.of() : texts;
    }

    /** Returns objects. */
    List<Arguments> objects(String name) {
        List<Arguments> objects = new ArrayList<>();
        list(name, MOST).forEach(value -> objects.add(new Arguments(value)));
        return objects;
    }

    /** Returns an object; null if it is missing. */
    Arguments optionalObject(String name) {
        Object value = fields.get(name);
        return value == null ? null : new Arguments(value);
    }

    private List<?> list(String name, int most) {
        Object value = fields.get(name);
        if (!(value instanceof List<?> list)) {
            throw new BadRequest("`" + name + "` must be a list");
        }
        if (list.size() > most) {
            throw new BadRequest("`" + name + "` has more than " + most + " entries");
        }
        return list;
    }
}
