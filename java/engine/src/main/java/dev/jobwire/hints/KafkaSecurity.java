package dev.jobwire.hints;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** TLS and SASL of a connection to Kafka. */
final class KafkaSecurity {
    private KafkaSecurity() {}

    static void add(HintSettings settings, Map<String, Object> properties)
            throws IOException {
        BrokerUrl broker = settings.broker();
        boolean hasUser = broker.user() != null;
        String protocol = (hasUser ? "SASL_" : "") + (broker.isTls() ? "SSL" : "PLAINTEXT");
        properties.put("security.protocol", protocol);
        if (hasUser) {
            String mechanism = broker.parameter("sasl").orElse("SCRAM-SHA-512");
            String module = mechanism.equalsIgnoreCase("PLAIN")
                    ? "org.apache.kafka.common.security.plain.PlainLoginModule"
                    : "org.apache.kafka.common.security.scram.ScramLoginModule";
            properties.put("sasl.mechanism", mechanism);
            properties.put("sasl.jaas.config", module + " required username="
                    + quoted(broker.user()) + " password=" + quoted(broker.password()) + ";");
        }
        if (!broker.isTls()) {
            return;
        }
        if (settings.tlsCa().isPresent()) {
            properties.put("ssl.truststore.type", "PEM");
            properties.put("ssl.truststore.certificates", text(settings.tlsCa().get()));
        }
        if (settings.tlsCertificate().isPresent() && settings.tlsKey().isPresent()) {
            properties.put("ssl.keystore.type", "PEM");
            properties.put("ssl.keystore.certificate.chain",
                    text(settings.tlsCertificate().get()));
            properties.put("ssl.keystore.key", text(settings.tlsKey().get()));
        }
    }

    private static String text(Path file) throws IOException {
        return Files.readString(file, StandardCharsets.ISO_8859_1);
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }
}
