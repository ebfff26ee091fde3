package dev.jobwire.endpoint;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;

/** The body of a request. */
final class Body {
    /** The longest body, in characters. */
    static final int LONGEST = 1024 * 1024;
    /** The longest body, in bytes. */
    private static final int MOST_BYTES = 4 * LONGEST;

    private Body() {}

    /** Reads a bounded part of a body in UTF-8, without closing it; null has no text. */
    static String text(InputStream body) {
        if (body == null) {
            return "";
        }
        try {
            byte[] read = body.readNBytes(MOST_BYTES + 1);
            if (read.length > MOST_BYTES) {
                throw new Arguments.BadRequest("the body has more than " + MOST_BYTES + " bytes");
            }
            return checked(new String(read, StandardCharsets.UTF_8));
        } catch (IOException failed) {
            throw new Arguments.BadRequest("the body could not be read: " + failed);
        }
    }

    /** Returns this body if it is not too long. */
    static String checked(String body) {
        if (body != null && body.length() > LONGEST) {
            throw new Arguments.BadRequest("the body has more than " + LONGEST + " characters");
        }
        return body;
    }
}
