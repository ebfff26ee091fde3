package dev.jobwire.spring;

import dev.jobwire.hints.HintSettings;
import dev.jobwire.hints.Plaintext;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.function.Consumer;
import org.springframework.boot.context.properties.ConfigurationProperties;

/**
 * The properties {@code jobwire.*}. Names and defaults are those of the program's settings, so both
 * read the same variables of the environment.
 *
 * @param brokerUrl the broker; without it, no hints are published
 * @param engineLane the lane of the hints; by default the engine's type
 * @param engineEndpoint whether the execution endpoint is served
 * @param kafkaProperties properties of Kafka's producer
 */
@ConfigurationProperties("jobwire")
record JobwireProperties(
        String brokerUrl,
        String engineLane,
        boolean engineEndpoint,
        Plaintext brokerPlaintext,
        Path brokerTlsCa,
        Path brokerTlsCertificate,
        Path brokerTlsKey,
        Integer hintBuffer,
        Duration hintMaxAge,
        String amqpPrefix,
        Integer amqpHintsPerMessage,
        Duration amqpConfirmTimeout,
        Integer kafkaHintsPerMessage,
        Duration kafkaConfirmTimeout,
        Map<String, String> kafkaProperties) {

    /** Returns the settings of an engine's hints. */
    HintSettings hints(String lane) {
        HintSettings.Builder settings = HintSettings.builder(lane).brokerUrl(brokerUrl);
        set(engineLane, settings::lane);
        set(brokerPlaintext, settings::brokerPlaintext);
        set(brokerTlsCa, settings::brokerTlsCa);
        set(brokerTlsCertificate, settings::brokerTlsCertificate);
        set(brokerTlsKey, settings::brokerTlsKey);
        set(hintBuffer, settings::hintBuffer);
        set(hintMaxAge, settings::hintMaxAge);
        set(amqpPrefix, settings::amqpPrefix);
        set(amqpHintsPerMessage, settings::amqpHintsPerMessage);
        set(amqpConfirmTimeout, settings::amqpConfirmTimeout);
        set(kafkaHintsPerMessage, settings::kafkaHintsPerMessage);
        set(kafkaConfirmTimeout, settings::kafkaConfirmTimeout);
        set(kafkaProperties, settings::kafkaProperties);
        return settings.build();
    }

    /** Returns a text without the values, because some are secrets. */
    @Override
    public String toString() {
        return "JobwireProperties";
    }

    private static <T> void set(T value, Consumer<T> setter) {
        if (value != null) {
            setter.accept(value);
        }
    }
}
