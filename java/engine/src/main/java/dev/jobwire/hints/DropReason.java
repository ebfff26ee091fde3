package dev.jobwire.hints;

/** The reason why a hint was not published. The sweeper finds its job. */
public enum DropReason {
    /** The buffer was full. */
    FULL("full"),
    /** The broker was away, or did not confirm, for longer than {@code hint_max_age}. */
    TOO_OLD("too-old"),
    /** No node has received the lane yet, or the name of the lane or the prefix is wrong. */
    NO_LANE("no-lane"),
    /** The engine has an id generator that Jobwire does not support. */
    UNKNOWN_ID("unknown-id"),
    /** The program ended first. */
    CLOSED("closed");

    private final String label;

    DropReason(String label) {
        this.label = label;
    }

    /** Returns the value of the label {@code reason} of the metric. */
    public String label() {
        return label;
    }
}
