package jobwire.engines;

/** An answer to a request: a status of HTTP and a text in JSON. */
public record Answer(int status, String json) {
    static Answer ok(String json) {
        return new Answer(200, json);
    }

    static Answer error(int status, String message) {
        return new Answer(status, "{\"message\":" + quoted(message) + "}");
    }

    /** Returns a text as JSON. */
    public static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        text.chars().forEach(character -> {
            if (character == '"' || character == '\\') {
                json.append('\\').append((char) character);
            } else if (character < ' ') {
                json.append(String.format("\\u%04x", character));
            } else {
                json.append((char) character);
            }
        });
        return json.append('"').toString();
    }
}
