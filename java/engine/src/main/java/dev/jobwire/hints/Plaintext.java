package dev.jobwire.hints;

/** The brokers that may be used without TLS. */
public enum Plaintext {
    /** Brokers on this machine only. */
    LOOPBACK,
    /** All brokers: for networks that are trusted or encrypt by themselves. */
    ALLOW;

    static Plaintext named(String name) {
        return switch (name) {
            case "loopback" -> LOOPBACK;
            case "allow" -> ALLOW;
            default -> throw new IllegalArgumentException("use 'loopback' or 'allow'");
        };
    }
}
