package dev.jobwire;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads JSON from outside: maps, lists, texts, {@link BigDecimal}, flags and null. The caller
 * bounds the length, and this class the depth.
 */
public final class JsonReader {
    private static final int DEEPEST = 8;

    /** Reports the place where a text is not JSON. */
    public static final class BadJson extends IllegalArgumentException {
        private static final long serialVersionUID = 1L;

        BadJson(String problem) {
            super(problem);
        }
    }

    private final String text;
    private int at;

    private JsonReader(String text) {
        this.text = text;
    }

    /** Returns the value of a whole text. */
    public static Object read(String text) {
        JsonReader reader = new JsonReader(text);
        Object value = reader.value(0);
        reader.skipSpace();
        if (reader.at < text.length()) {
            throw reader.bad("more than one value");
        }
        return value;
    }

    private Object value(int depth) {
        if (depth > DEEPEST) {
            throw bad("values are nested deeper than " + DEEPEST);
        }
        skipSpace();
        switch (peek()) {
            case '{' -> {
                return map(depth);
            }
            case '[' -> {
                return list(depth);
            }
            case '"' -> {
                return string();
            }
            default -> {
                return scalar();
            }
        }
    }

    private Map<String, Object> map(int depth) {
        Map<String, Object> map = new LinkedHashMap<>();
        at++;
        if (isNext('}')) {
            return map;
        }
        do {
            skipSpace();
            String name = string();
            expect(':');
            map.put(name, value(depth + 1));
        } while (isNext(','));
        expect('}');
        return map;
    }

    private List<Object> list(int depth) {
        List<Object> list = new ArrayList<>();
        at++;
        if (isNext(']')) {
            return list;
        }
        do {
            list.add(value(depth + 1));
        } while (isNext(','));
        expect(']');
        return list;
    }

    private String string() {
        if (peek() != '"') {
            throw bad("a text is missing");
        }
        at++;
        StringBuilder read = new StringBuilder();
        while (true) {
            char c = next();
            if (c == '"') {
                return read.toString();
            }
            read.append(c == '\\' ? escaped() : c);
        }
    }

    private char escaped() {
        char c = next();
        return switch (c) {
            case '"', '\\', '/' -> c;
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            case 'u' -> code();
            default -> throw bad("an unknown escape");
        };
    }

    private char code() {
        if (at + 4 > text.length()) {
            throw bad("the text ends");
        }
        String digits = text.substring(at, at + 4);
        at += 4;
        if (!digits.matches("[0-9a-fA-F]{4}")) {
            throw bad("an unknown escape");
        }
        return (char) Integer.parseInt(digits, 16);
    }

    private Object scalar() {
        int from = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(from, at);
        return switch (word) {
            case "true" -> true;
            case "false" -> false;
            case "null" -> null;
            default -> number(word);
        };
    }

    private BigDecimal number(String word) {
        // The length of the text also bounds the number.
        if (!word.matches("-?[0-9]{1,18}(\\.[0-9]{1,9})?")) {
            throw bad("no value");
        }
        return new BigDecimal(word);
    }

    private char peek() {
        if (at >= text.length()) {
            throw bad("the text ends");
        }
        return text.charAt(at);
    }

    private char next() {
        char c = peek();
        at++;
        return c;
    }

    private void skipSpace() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private boolean isNext(char wanted) {
        skipSpace();
        boolean is = at < text.length() && text.charAt(at) == wanted;
        at += is ? 1 : 0;
        return is;
    }

    private void expect(char wanted) {
        if (!isNext(wanted)) {
            throw bad("'" + wanted + "' is missing");
        }
    }

    private BadJson bad(String problem) {
        return new BadJson("the body is no JSON: " + problem + " at character " + at);
    }
}
