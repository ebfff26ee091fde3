package dev.jobwire;

import java.util.Map;

/** Values as JSON. */
public final class Json {
    private Json() {}

    /** Returns null, a text, a number, a flag, a map of texts or a sequence as JSON. */
    public static String of(Object value) {
        StringBuilder json = new StringBuilder();
        write(value, json);
        return json.toString();
    }

    private static void write(Object value, StringBuilder json) {
        if (value instanceof Map<?, ?> map) {
            char before = '{';
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                json.append(before).append(quoted(entry.getKey().toString())).append(':');
                write(entry.getValue(), json);
                before = ',';
            }
            json.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof Iterable<?> sequence) {
            char before = '[';
            for (Object item : sequence) {
                json.append(before);
                write(item, json);
                before = ',';
            }
            json.append(before == '[' ? "[]" : "]");
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            json.append(value);
        } else {
            json.append(quoted(value.toString()));
        }
    }

    /** Returns a text in quotes; {@code null} for null. */
    public static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder json = new StringBuilder(text.length() + 2).append('"');
        for (int at = 0; at < text.length(); at++) {
            char c = text.charAt(at);
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ' || isHalf(text, at)) {
                json.append(String.format("\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }

    /** Returns whether this is one half of a surrogate pair, which UTF-8 cannot encode. */
    private static boolean isHalf(String text, int at) {
        char c = text.charAt(at);
        if (Character.isHighSurrogate(c)) {
            return at + 1 == text.length() || !Character.isLowSurrogate(text.charAt(at + 1));
        }
        return Character.isLowSurrogate(c)
                && (at == 0 || !Character.isHighSurrogate(text.charAt(at - 1)));
    }
}
