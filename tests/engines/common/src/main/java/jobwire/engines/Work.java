package jobwire.engines;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * What the activities of the processes do: the bean {@code work} in their expressions. It names no
 * class of an engine, so all engines share it. Each call leaves a row in {@code jobwire_effect}.
 */
public final class Work {
    private static final long LONGEST_HOLD_SECONDS = 300;

    private final Effects effects;
    private final Map<String, CountDownLatch> held = new ConcurrentHashMap<>();

    /** Creates the table of effects if it is missing. */
    public Work(Settings settings) {
        effects = new Effects(Pool.open(settings, "effects", 20), settings.node());
    }

    /** Does nothing else. */
    public void once(String instance, String activity) {
        effects.begin(instance, activity);
    }

    /** Fails as often as {@code failures} says, and then succeeds. */
    public void fail(String instance, String activity, long failures) {
        int attempt = effects.begin(instance, activity);
        if (attempt <= failures) {
            throw new IllegalStateException("attempt " + attempt + " fails, as wished");
        }
        effects.end(instance, activity, attempt);
    }

    /** Takes as long as {@code millis} says. */
    public void slow(String instance, String activity, long millis) throws InterruptedException {
        int attempt = effects.begin(instance, activity);
        Thread.sleep(millis);
        effects.end(instance, activity, attempt);
    }

    /** Runs until {@link #release} was called for its instance, before or after its start. */
    public void hold(String instance, String activity) throws InterruptedException {
        int attempt = effects.begin(instance, activity);
        if (!latch(instance).await(LONGEST_HOLD_SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(activity + " was not released");
        }
        effects.end(instance, activity, attempt);
    }

    /** Runs until {@link #release}, and then fails if {@code failures} says so. */
    public void holdAndFail(String instance, String activity, long failures)
            throws InterruptedException {
        hold(instance, activity);
        fail(instance, activity + ".end", failures);
    }

    /** Lets the held activities of an instance end. */
    public void release(String instance) {
        latch(instance).countDown();
    }

    private CountDownLatch latch(String instance) {
        return held.computeIfAbsent(instance, id -> new CountDownLatch(1));
    }
}
