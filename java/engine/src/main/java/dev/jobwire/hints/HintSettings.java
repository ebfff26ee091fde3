package dev.jobwire.hints;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * The settings of a {@link HintPublisher}. Names and defaults are those of the program {@code
 * jobwire}; give both the same values.
 *
 * <pre>{@code
 * HintSettings settings = HintSettings.builder("flowable")
 *         .brokerUrl("amqps://user:password@host/jobs")
 *         .build();
 * }</pre>
 *
 * <p>{@link #fromEnvironment} reads the same variables as the program.
 *
 * <table>
 * <caption>Settings</caption>
 * <tr><th>method</th><th>variable</th><th>default</th></tr>
 * <tr><td>brokerUrl</td><td>JOBWIRE_BROKER_URL</td><td>required</td></tr>
 * <tr><td>lane</td><td>JOBWIRE_ENGINE_LANE</td><td>the engine's type</td></tr>
 * <tr><td>brokerPlaintext</td><td>JOBWIRE_BROKER_PLAINTEXT</td><td>loopback</td></tr>
 * <tr><td>brokerTlsCa</td><td>JOBWIRE_BROKER_TLS_CA</td><td>the machine's authorities</td></tr>
 * <tr><td>brokerTlsCertificate</td><td>JOBWIRE_BROKER_TLS_CERTIFICATE</td><td>none</td></tr>
 * <tr><td>brokerTlsKey</td><td>JOBWIRE_BROKER_TLS_KEY</td><td>none</td></tr>
 * <tr><td>hintBuffer</td><td>JOBWIRE_HINT_BUFFER</td><td>100000</td></tr>
 * <tr><td>hintMaxAge</td><td>JOBWIRE_HINT_MAX_AGE</td><td>10s</td></tr>
 * <tr><td>amqpPrefix</td><td>JOBWIRE_AMQP_PREFIX</td><td>jobwire</td></tr>
 * <tr><td>amqpHintsPerMessage</td><td>JOBWIRE_AMQP_HINTS_PER_MESSAGE</td><td>16</td></tr>
 * <tr><td>amqpConfirmTimeout</td><td>JOBWIRE_AMQP_CONFIRM_TIMEOUT</td><td>5s</td></tr>
 * <tr><td>kafkaHintsPerMessage</td><td>JOBWIRE_KAFKA_HINTS_PER_MESSAGE</td><td>16</td></tr>
 * <tr><td>kafkaConfirmTimeout</td><td>JOBWIRE_KAFKA_CONFIRM_TIMEOUT</td><td>5s</td></tr>
 * <tr><td>kafkaProperties</td><td></td><td>none: properties of Kafka's producer</td></tr>
 * </table>
 */
public final class HintSettings {
    private final BrokerUrl broker;
    private final Builder set;

    private HintSettings(BrokerUrl broker, Builder set) {
        this.broker = broker;
        this.set = set;
    }

    /** Returns a builder with the defaults and this lane, by default the type of the engine. */
    public static Builder builder(String lane) {
        return new Builder().lane(lane);
    }

    /**
     * Reads the variables of the environment. Returns empty if {@code JOBWIRE_BROKER_URL} is not
     * set: then no hints are published.
     *
     * @throws BadSettings if a value can't be used
     */
    public static Optional<HintSettings> fromEnvironment(String lane) {
        return from(System.getenv(), lane);
    }

    static Optional<HintSettings> from(Map<String, String> environment, String lane) {
        Variables variables = new Variables(environment);
        Builder set = builder(lane);
        variables.read("BROKER_URL", text -> text, set::brokerUrl);
        if (set.brokerUrl == null) {
            return Optional.empty();
        }
        variables.read("ENGINE_LANE", text -> text, set::lane);
        variables.read("BROKER_PLAINTEXT", Plaintext::named, set::brokerPlaintext);
        variables.read("BROKER_TLS_CA", Path::of, set::brokerTlsCa);
        variables.read("BROKER_TLS_CERTIFICATE", Path::of, set::brokerTlsCertificate);
        variables.read("BROKER_TLS_KEY", Path::of, set::brokerTlsKey);
        variables.read("HINT_BUFFER", Integer::valueOf, set::hintBuffer);
        variables.read("HINT_MAX_AGE", Durations::parse, set::hintMaxAge);
        variables.read("AMQP_PREFIX", text -> text, set::amqpPrefix);
        variables.read("AMQP_HINTS_PER_MESSAGE", Integer::valueOf, set::amqpHintsPerMessage);
        variables.read("AMQP_CONFIRM_TIMEOUT", Durations::parse, set::amqpConfirmTimeout);
        variables.read("KAFKA_HINTS_PER_MESSAGE", Integer::valueOf, set::kafkaHintsPerMessage);
        variables.read("KAFKA_CONFIRM_TIMEOUT", Durations::parse, set::kafkaConfirmTimeout);
        return Optional.of(set.build(variables.mistakes));
    }

    BrokerUrl broker() {
        return broker;
    }

    /** Returns the lane of the hints. */
    public String lane() {
        return set.lane;
    }

    /** Returns the prefix of the names on the broker. */
    String prefix() {
        if (!broker.isKafka()) {
            return set.amqpPrefix;
        }
        return broker.path().isEmpty() ? "jobwire" : broker.path();
    }

    int hintsPerMessage() {
        return broker.isKafka() ? set.kafkaHintsPerMessage : set.amqpHintsPerMessage;
    }

    Duration confirmTimeout() {
        return broker.isKafka() ? set.kafkaConfirmTimeout : set.amqpConfirmTimeout;
    }

    int hintBuffer() {
        return set.hintBuffer;
    }

    Duration hintMaxAge() {
        return set.hintMaxAge;
    }

    Optional<Path> tlsCa() {
        return Optional.ofNullable(set.brokerTlsCa);
    }

    Optional<Path> tlsCertificate() {
        return Optional.ofNullable(set.brokerTlsCertificate);
    }

    Optional<Path> tlsKey() {
        return Optional.ofNullable(set.brokerTlsKey);
    }

    Map<String, String> kafkaProperties() {
        return set.kafkaProperties;
    }

    /** Collects settings. */
    public static final class Builder implements Cloneable {
        private static final int MOST_BUFFERED = 10_000_000;

        private String brokerUrl;
        private String lane;
        private Plaintext brokerPlaintext = Plaintext.LOOPBACK;
        private Path brokerTlsCa;
        private Path brokerTlsCertificate;
        private Path brokerTlsKey;
        private int hintBuffer = 100_000;
        private Duration hintMaxAge = Duration.ofSeconds(10);
        private String amqpPrefix = "jobwire";
        private int amqpHintsPerMessage = 16;
        private Duration amqpConfirmTimeout = Duration.ofSeconds(5);
        private int kafkaHintsPerMessage = 16;
        private Duration kafkaConfirmTimeout = Duration.ofSeconds(5);
        private Map<String, String> kafkaProperties = Map.of();

        private Builder() {}

        /** Sets the broker: {@code amqps://...} or {@code kafka://...}. Required. */
        public Builder brokerUrl(String url) {
            brokerUrl = url;
            return this;
        }

        /** Sets the lane; it must be the {@code engine_lane} of the nodes. */
        public Builder lane(String name) {
            lane = name;
            return this;
        }

        /** Sets the brokers that may be used without TLS. Default: those on this machine. */
        public Builder brokerPlaintext(Plaintext where) {
            brokerPlaintext = where;
            return this;
        }

        /** Sets the PEM file with the authorities that may sign the broker's certificate. */
        public Builder brokerTlsCa(Path file) {
            brokerTlsCa = file;
            return this;
        }

        /** Sets the PEM file with the certificate of this client. */
        public Builder brokerTlsCertificate(Path file) {
            brokerTlsCertificate = file;
            return this;
        }

        /** Sets the PEM file with the private key of the certificate, in PKCS 8. */
        public Builder brokerTlsKey(Path file) {
            brokerTlsKey = file;
            return this;
        }

        /** Sets the number of hints that may wait. More are dropped. Default: 100,000. */
        public Builder hintBuffer(int hints) {
            hintBuffer = hints;
            return this;
        }

        /** Sets the time that a hint may wait before it is dropped. Default: 10 s. */
        public Builder hintMaxAge(Duration age) {
            hintMaxAge = age;
            return this;
        }

        /** Sets the prefix of the names on RabbitMQ. Default: jobwire. */
        public Builder amqpPrefix(String prefix) {
            amqpPrefix = prefix;
            return this;
        }

        /** Sets the largest number of hints in a message on RabbitMQ. Default: 16. */
        public Builder amqpHintsPerMessage(int hints) {
            amqpHintsPerMessage = hints;
            return this;
        }

        /** Sets the time limit of a confirm from RabbitMQ. Default: 5 s. */
        public Builder amqpConfirmTimeout(Duration timeout) {
            amqpConfirmTimeout = timeout;
            return this;
        }

        /** Sets the largest number of hints in a message on Kafka. Default: 16. */
        public Builder kafkaHintsPerMessage(int hints) {
            kafkaHintsPerMessage = hints;
            return this;
        }

        /** Sets the time limit of a confirm from Kafka. Default: 5 s. */
        public Builder kafkaConfirmTimeout(Duration timeout) {
            kafkaConfirmTimeout = timeout;
            return this;
        }

        /** Sets properties of Kafka's producer. They override all other settings. */
        public Builder kafkaProperties(Map<String, String> properties) {
            kafkaProperties = Map.copyOf(properties);
            return this;
        }

        /**
         * Checks the settings.
         *
         * @throws BadSettings with all mistakes
         */
        public HintSettings build() {
            return build(new ArrayList<>());
        }

        private HintSettings build(List<String> mistakes) {
            BrokerUrl broker = null;
            if (brokerUrl == null) {
                mistakes.add("the URL of the broker (broker_url) is missing");
            } else {
                try {
                    broker = BrokerUrl.parse(brokerUrl);
                    checkSecurity(broker, mistakes);
                } catch (BadSettings bad) {
                    mistakes.addAll(bad.mistakes());
                }
            }
            check(lane != null && lane.matches("[A-Za-z0-9._-]{1,64}"), mistakes,
                    "the lane (engine_lane) must have 1 to 64 letters, digits, '-', '_' or '.'");
            check(amqpPrefix != null
                            && amqpPrefix.matches("[A-Za-z0-9._:-]{1,100}")
                            && !amqpPrefix.startsWith("amq."), mistakes,
                    "amqp_prefix must have 1 to 100 letters, digits, '-', '_', '.' or ':', and "
                            + "must not begin with 'amq.'");
            check(hintBuffer >= 1 && hintBuffer <= MOST_BUFFERED, mistakes,
                    "hint_buffer must be 1 to " + MOST_BUFFERED);
            check(isPacking(amqpHintsPerMessage) && isPacking(kafkaHintsPerMessage), mistakes,
                    "amqp_hints_per_message and kafka_hints_per_message must be 1 to "
                            + HintMessage.MOST_HINTS);
            check(isWait(hintMaxAge) && isWait(amqpConfirmTimeout) && isWait(kafkaConfirmTimeout),
                    mistakes,
                    "hint_max_age, amqp_confirm_timeout and kafka_confirm_timeout must be 10ms to "
                            + "1h");
            if (!mistakes.isEmpty()) {
                throw new BadSettings(mistakes);
            }
            return new HintSettings(broker, copy());
        }

        private void checkSecurity(BrokerUrl broker, List<String> mistakes) {
            boolean isSecret = broker.isTls()
                    || broker.isLoopback()
                    || brokerPlaintext == Plaintext.ALLOW;
            check(isSecret, mistakes, "the broker is on another machine, and its URL is without "
                    + "TLS: write amqps:// or kafka://...?tls=true, or set broker_plaintext to "
                    + "'allow' in a network that is trusted or encrypts by itself");
            check((brokerTlsCertificate == null) == (brokerTlsKey == null), mistakes,
                    "broker_tls_certificate and broker_tls_key belong together: set both or none");
        }

        private static void check(boolean isRight, List<String> mistakes, String mistake) {
            if (!isRight) {
                mistakes.add(mistake);
            }
        }

        private static boolean isPacking(int hints) {
            return hints >= 1 && hints <= HintMessage.MOST_HINTS;
        }

        private static boolean isWait(Duration wait) {
            return wait != null
                    && wait.compareTo(Duration.ofMillis(10)) >= 0
                    && wait.compareTo(Duration.ofHours(1)) <= 0;
        }

        private Builder copy() {
            try {
                return (Builder) clone();
            } catch (CloneNotSupportedException impossible) {
                throw new AssertionError(impossible);
            }
        }
    }

    /** The variables of the environment, and the mistakes in them. */
    private static final class Variables {
        private final Map<String, String> environment;
        private final List<String> mistakes = new ArrayList<>();

        private Variables(Map<String, String> environment) {
            this.environment = environment;
        }

        private <T> void read(String name, Function<String, T> parse, Consumer<T> set) {
            String variable = "JOBWIRE_" + name;
            String text = environment.get(variable);
            if (text == null || text.isEmpty()) {
                return;
            }
            try {
                set.accept(parse.apply(text));
            } catch (IllegalArgumentException bad) {
                mistakes.add(variable + " can't be read: " + bad.getMessage());
            }
        }
    }
}
