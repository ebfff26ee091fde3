package dev.jobwire.hints;

import java.util.Optional;
import java.util.UUID;

/**
 * Converts the ids of an engine's jobs to UUIDs, by the same rules as the nodes.
 *
 * <table>
 * <caption>Ids</caption>
 * <tr><td>a UUID of version 1 to 7 in its usual form</td><td>the same bits</td></tr>
 * <tr><td>{@code JOB-} and such a UUID</td><td>the version is 8 larger</td></tr>
 * <tr><td>a number, also after {@code JOB-}</td><td>version 8, a marker, the number</td></tr>
 * </table>
 *
 * <p>An id of any other form comes from the application's own id generator. The nodes refuse an
 * engine with such ids.
 */
final class EngineIds {
    private static final String PREFIX = "JOB-";
    /** The upper half of the UUID of a number. */
    private static final long NUMBER = 0x4a4f_4257_4900_8000L;
    private static final long PREFIXED = 1;
    private static final int NUMBER_BITS = 62;
    /** The largest number of 62 bits has 19 digits. */
    private static final int LONGEST_NUMBER = 19;

    private EngineIds() {}

    /** Returns the UUID of an id; empty for an id of an unknown form. */
    static Optional<UUID> uuid(String id) {
        if (id == null) {
            return Optional.empty();
        }
        boolean isPrefixed = id.startsWith(PREFIX);
        String rest = isPrefixed ? id.substring(PREFIX.length()) : id;
        if (isNumber(rest)) {
            long number = Long.parseLong(rest);
            if (number >>> NUMBER_BITS != 0) {
                return Optional.empty();
            }
            long kind = isPrefixed ? PREFIXED : 0;
            return Optional.of(new UUID(NUMBER | kind, Long.MIN_VALUE | number));
        }
        return canonical(rest).map(uuid -> isPrefixed ? prefixed(uuid) : uuid);
    }

    /** Returns whether an id is a number without a sign or a leading zero. */
    private static boolean isNumber(String text) {
        if (text.isEmpty() || text.length() > LONGEST_NUMBER) {
            return false;
        }
        if (text.length() == LONGEST_NUMBER && text.compareTo("9223372036854775807") > 0) {
            return false;
        }
        boolean isCanonical = text.length() == 1 || text.charAt(0) != '0';
        return isCanonical && text.chars().allMatch(digit -> digit >= '0' && digit <= '9');
    }

    private static Optional<UUID> canonical(String text) {
        UUID uuid;
        try {
            uuid = UUID.fromString(text);
        } catch (IllegalArgumentException notOne) {
            return Optional.empty();
        }
        boolean isKnown = uuid.version() >= 1 && uuid.version() <= 7;
        return isKnown && uuid.toString().equals(text) ? Optional.of(uuid) : Optional.empty();
    }

    private static UUID prefixed(UUID uuid) {
        return new UUID(uuid.getMostSignificantBits() | 0x8000L, uuid.getLeastSignificantBits());
    }
}
