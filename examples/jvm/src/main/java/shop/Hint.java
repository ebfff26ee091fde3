package shop;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** The message that a job is ready: docs/reference/hints.md, version 1. */
final class Hint {
    private Hint() {}

    /** Microseconds since 1970. */
    static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    static byte[] encode(Job job, long committedAt) {
        String instance = job.instance() == null ? "" : ",\"i\":" + quoted(job.instance());
        String message =
                "{\"v\":1,\"at\":%d,\"hints\":[{\"id\":\"%s\"%s,\"c\":%d}]}"
                        .formatted(now(), job.id(), instance, committedAt);
        return message.getBytes(StandardCharsets.UTF_8);
    }

    /** Any JSON library does this too. */
    private static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ') {
                json.append("\\u%04x".formatted((int) c));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }
}
