package jobwire.engines;

/** What runs the jobs of an engine. */
public enum Executor {
    /** Nothing in this program. */
    OFF,
    /** The engine's own executor. */
    ON,
    /** The engine's message-queue mode, with a queue that loses every message. */
    MESSAGE_QUEUE;

    static Executor named(String name) {
        return switch (name) {
            case "off" -> OFF;
            case "on" -> ON;
            case "message-queue" -> MESSAGE_QUEUE;
            default -> throw new IllegalArgumentException(
                    "ENGINE_EXECUTOR is " + name + ": use off, on or message-queue");
        };
    }
}
