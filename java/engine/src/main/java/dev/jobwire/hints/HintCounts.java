package dev.jobwire.hints;

import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

/** Counts hints since the start of the program. */
public final class HintCounts {
    private final LongAdder published = new LongAdder();
    private final LongAdder timers = new LongAdder();
    private final Map<DropReason, LongAdder> dropped = new EnumMap<>(DropReason.class);

    HintCounts() {
        for (DropReason reason : DropReason.values()) {
            dropped.put(reason, new LongAdder());
        }
    }

    /** Returns the number of hints that the broker has confirmed. */
    public long published() {
        return published.sum();
    }

    /** Returns the number of due dates that the leader was told. */
    public long timers() {
        return timers.sum();
    }

    /** Returns the number of hints that were dropped for this reason. */
    public long dropped(DropReason reason) {
        return dropped.get(reason).sum();
    }

    /** Returns the number of hints that were dropped. */
    public long dropped() {
        return dropped.values().stream().mapToLong(LongAdder::sum).sum();
    }

    void publish(long hints) {
        published.add(hints);
    }

    void tell() {
        timers.increment();
    }

    void drop(DropReason reason, long hints) {
        dropped.get(reason).add(hints);
    }
}
