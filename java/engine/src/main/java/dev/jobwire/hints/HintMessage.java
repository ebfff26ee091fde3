package dev.jobwire.hints;

import dev.jobwire.Json;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * A message with hints, version 1 of the format.
 *
 * @param text the message
 * @param hints the number of hints in it
 */
record HintMessage(byte[] text, int hints) {
    /** The largest message that a node reads. */
    static final int MOST_BYTES = 65_536;
    /** The largest number of hints that a node reads. */
    static final int MOST_HINTS = 512;
    /** The longest process instance that a job can have, in bytes. */
    private static final int MOST_INSTANCE_BYTES = 1_024;
    private static final String END = "]}";

    /** Packs hints of one lane, at most {@code most} into a message, at the time {@code at}. */
    static List<HintMessage> pack(List<Hint> hints, int most, long at) {
        List<HintMessage> messages = new ArrayList<>();
        String begin = "{\"v\":1,\"at\":" + at + ",\"hints\":[";
        StringBuilder text = new StringBuilder(begin);
        int bytes = begin.length() + END.length();
        int packed = 0;
        for (Hint hint : hints) {
            String json = json(hint);
            int more = json.getBytes(StandardCharsets.UTF_8).length + 1;
            if (packed == most || packed > 0 && bytes + more > MOST_BYTES) {
                messages.add(message(text, packed));
                text = new StringBuilder(begin);
                bytes = begin.length() + END.length();
                packed = 0;
            }
            if (packed > 0) {
                text.append(',');
            }
            text.append(json);
            bytes += more;
            packed++;
        }
        if (packed > 0) {
            messages.add(message(text, packed));
        }
        return messages;
    }

    private static HintMessage message(StringBuilder text, int hints) {
        byte[] message = text.append(END).toString().getBytes(StandardCharsets.UTF_8);
        return new HintMessage(message, hints);
    }

    private static String json(Hint hint) {
        StringBuilder json = new StringBuilder("{\"id\":\"").append(hint.id()).append('"');
        if (isAllowed(hint.instance())) {
            json.append(",\"i\":").append(Json.quoted(hint.instance()));
        }
        return json.append(",\"c\":").append(hint.committedAt()).append('}').toString();
    }

    /** Returns whether a reader accepts this instance. It ignores any other. */
    private static boolean isAllowed(String instance) {
        return instance != null
                && instance.indexOf('\0') < 0
                && instance.getBytes(StandardCharsets.UTF_8).length <= MOST_INSTANCE_BYTES;
    }
}
