package dev.jobwire.hints;

/** Where a broker may be used without TLS. */
public enum Plaintext {
    /** On this machine only. */
    LOOPBACK,
    /** Anywhere: for networks that are trusted or encrypt by themselves. */
    ALLOW;

    static Plaintext named(String name) {
        return switch (name) {
            case "loopback" -> LOOPBACK;
            case "allow" -> ALLOW;
            default -> throw new IllegalArgumentException("use 'loopback' or 'allow'");
        };
    }
}
