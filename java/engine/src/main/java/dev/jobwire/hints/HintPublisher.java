package dev.jobwire.hints;

import java.time.Duration;
import java.time.Instant;
import java.util.Date;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Publishes the hints of committed jobs. The engine's threads call it after each commit. They never
 * wait for the broker and never get its failures.
 *
 * <pre>{@code
 * HintPublisher hints = HintPublisher.start(settings);
 * FlowableHints.install(configuration, hints);   // or ActivitiHints, CamundaHints
 * ...
 * hints.close();                                 // after the engine
 * }</pre>
 *
 * <p>A bounded buffer takes the hints. One thread publishes all hints that wait, together. A hint
 * is dropped if the buffer is full, if the hint is older than {@code hint_max_age}, or if no node
 * has received its lane yet. {@link #counts} counts dropped hints, and a log line reports them at
 * most every ten seconds. The sweeper finds their jobs.
 *
 * <p>Also sends the leader the due dates of new timers that are due soon, so that it need not
 * search.
 */
public final class HintPublisher implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(HintPublisher.class);
    /** Maximum number of hints that are published together. */
    private static final int BATCH = 512;
    private static final Duration SHORTEST_PAUSE = Duration.ofMillis(50);
    private static final Duration LONGEST_PAUSE = Duration.ofSeconds(5);
    /** Maximum time for publishing the remaining hints at the end of the program. */
    private static final Duration CLOSE = Duration.ofSeconds(5);

    private final HintSettings settings;
    private final Broker broker;
    private final HintBuffer buffer;
    private final HintCounts counts = new HintCounts();
    private final LogThrottle complaints = new LogThrottle();
    private final TimerNews news = new TimerNews();
    private final Thread thread;
    private Duration pause = SHORTEST_PAUSE;

    HintPublisher(HintSettings settings, Broker broker) {
        this.settings = settings;
        this.broker = broker;
        this.buffer = new HintBuffer(settings.hintBuffer());
        this.thread = Threads.named("jobwire-hints").newThread(this::run);
    }

    /**
     * Starts the thread, which connects to the broker. Succeeds even if the broker is away.
     *
     * @throws BadSettings if the client of the broker is not in the class path
     */
    public static HintPublisher start(HintSettings settings) {
        HintPublisher publisher = new HintPublisher(settings, broker(settings));
        publisher.start();
        return publisher;
    }

    void start() {
        thread.start();
    }

    private static Broker broker(HintSettings settings) {
        boolean isKafka = settings.broker().isKafka();
        String client = isKafka
                ? "org.apache.kafka.clients.producer.KafkaProducer"
                : "com.rabbitmq.client.ConnectionFactory";
        try {
            Class.forName(client, false, HintPublisher.class.getClassLoader());
        } catch (ClassNotFoundException missing) {
            String artifact =
                    isKafka ? "org.apache.kafka:kafka-clients" : "com.rabbitmq:amqp-client";
            throw new BadSettings("the class path lacks the client of the broker: add " + artifact);
        }
        return isKafka ? new KafkaBroker(settings) : new RabbitBroker(settings);
    }

    /**
     * Publishes the hint of a job. Call it after the commit of the transaction that made the job
     * ready. Never waits and never fails.
     *
     * @param job the id of the job in the engine
     * @param instance its process instance; null if there is none
     */
    public void ready(String job, String instance) {
        Optional<UUID> id = EngineIds.uuid(job);
        if (id.isEmpty()) {
            drop(DropReason.UNKNOWN_ID, 1, "the engine has its own id generator; use the engine's "
                    + "StrongUuidGenerator");
        } else if (!buffer.add(new Hint(id.get(), instance, Clock.micros()))) {
            DropReason reason = buffer.isClosed() ? DropReason.CLOSED : DropReason.FULL;
            drop(reason, 1, "too many hints wait for the broker");
        }
    }

    /**
     * Sends the leader a timer whose transaction has committed. Never waits and never fails.
     *
     * @param due any date of the JDK: an engine keeps the object that an expression of a process
     *     returns, and {@code java.sql.Date} has no instant
     */
    public void timer(Date due) {
        buffer.addTimer(Instant.ofEpochMilli(due.getTime()));
    }

    /** Returns the numbers of published and dropped hints. */
    public HintCounts counts() {
        return counts;
    }

    /** Returns the number of hints that wait. */
    public int waiting() {
        return buffer.size();
    }

    /** Returns the lane of the hints. */
    public String lane() {
        return settings.lane();
    }

    /** Publishes the remaining hints, for at most five seconds, and ends. */
    @Override
    public void close() {
        buffer.close();
        try {
            thread.join(CLOSE.toMillis());
            if (thread.isAlive()) {
                thread.interrupt();
                thread.join(CLOSE.toMillis());
            }
        } catch (InterruptedException hurry) {
            thread.interrupt();
            Thread.currentThread().interrupt();
        }
    }

    private void run() {
        try {
            begin();
            boolean goesOn = true;
            while (goesOn) {
                goesOn = supervisedTurn();
            }
        } catch (InterruptedException closed) {
            int left = buffer.size();
            if (left > 0) {
                drop(DropReason.CLOSED, left, "the program ends");
            }
        } finally {
            broker.close();
        }
    }

    /** Connects, so that the first hint does not wait for the connection. */
    private void begin() throws InterruptedException {
        try {
            broker.connect();
        } catch (BrokerException | RuntimeException | LinkageError away) {
            complain("no hints can be published now: {}", away.toString());
        }
    }

    /** Catches errors of this class and of clients of other versions, so that the thread lives. */
    private boolean supervisedTurn() throws InterruptedException {
        try {
            return turn();
        } catch (RuntimeException | LinkageError mistake) {
            LOG.error("could not publish hints because of an unexpected error; continuing", mistake);
            return true;
        }
    }

    /** Publishes the waiting hints. Returns false at the end. */
    private boolean turn() throws InterruptedException {
        HintBuffer.Taken taken = buffer.take(BATCH);
        if (taken == null) {
            return false;
        }
        if (!taken.hints().isEmpty()) {
            publish(taken.hints());
        }
        if (taken.due() != null && news.isNews(taken.due(), Instant.now())) {
            tell(taken.due());
        }
        return true;
    }

    /** Publishes hints. Repeats this until the broker has them or they are too old. */
    private void publish(List<Hint> hints) throws InterruptedException {
        List<Hint> left = young(hints);
        while (!left.isEmpty()) {
            try {
                int lost = broker.publish(left);
                counts.publish(left.size() - lost);
                pause = SHORTEST_PAUSE;
                if (lost > 0) {
                    drop(DropReason.NO_LANE, lost, "no node has received the lane '"
                            + settings.lane() + "' yet, or its name or the prefix is wrong");
                }
                return;
            } catch (InterruptedException closed) {
                drop(DropReason.CLOSED, left.size(), "the program ends");
                throw closed;
            } catch (BrokerException | RuntimeException | LinkageError away) {
                complain("hints wait for the broker: {}", away.toString());
                if (buffer.isClosed()) {
                    drop(DropReason.CLOSED, left.size(), "the program ends");
                    return;
                }
                buffer.pause(pause);
                Duration longer = pause.multipliedBy(2);
                pause = longer.compareTo(LONGEST_PAUSE) < 0 ? longer : LONGEST_PAUSE;
                left = young(left);
            }
        }
    }

    /** Returns the hints that are young enough; drops the others. */
    private List<Hint> young(List<Hint> hints) {
        long oldest = Clock.micros() - settings.hintMaxAge().toNanos() / 1_000;
        List<Hint> young = hints.stream().filter(hint -> hint.committedAt() >= oldest).toList();
        int old = hints.size() - young.size();
        if (old > 0) {
            drop(DropReason.TOO_OLD, old, "the broker did not accept them in time");
        }
        return young;
    }

    private void tell(Instant due) throws InterruptedException {
        try {
            broker.tell(TimerNews.message(due));
            counts.tell();
        } catch (BrokerException | RuntimeException lost) {
            LOG.debug("the leader did not get a timer: {}", lost.getMessage());
        }
    }

    private void drop(DropReason reason, int hints, String why) {
        counts.drop(reason, hints);
        complain("hints were dropped: " + hints + "; the sweeper finds their jobs; {}", why);
    }

    private void complain(String line, String why) {
        complaints.now().ifPresent(more -> {
            String others = more == 0 ? "" : " (and " + more + " lines like this)";
            LOG.warn(line + others, why);
        });
    }
}
