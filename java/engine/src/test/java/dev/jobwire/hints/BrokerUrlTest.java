package dev.jobwire.hints;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class BrokerUrlTest {
    @Test
    void everyPartOfAUrlIsRead() {
        BrokerUrl rabbit = BrokerUrl.parse(
                "amqps://bob:s3cr%2Ft%40@h1,[::1]:5673/%2Fjobs?heartbeat=3");
        assertEquals("bob", rabbit.user());
        assertEquals("s3cr/t@", rabbit.password());
        assertEquals(
                List.of(new BrokerUrl.Host("h1", 5671), new BrokerUrl.Host("::1", 5673)),
                rabbit.hosts());
        assertEquals("/jobs", rabbit.path());
        assertEquals(3, rabbit.number("heartbeat").orElseThrow());
        assertTrue(rabbit.isTls());
        BrokerUrl kafka = BrokerUrl.parse("kafka://k1,k2:9093/billing?tls=true&sasl=PLAIN");
        assertTrue(kafka.isKafka() && kafka.isTls());
        assertEquals("[k1:9092, k2:9093]", kafka.hosts().toString());
        assertEquals("billing", kafka.path());
        assertTrue(BrokerUrl.parse("amqp://localhost").isLoopback());
        assertFalse(BrokerUrl.parse("amqp://127.0.0.1,h2").isLoopback());
    }

    @Test
    void noMessageShowsThePassword() {
        for (String url : List.of(
                "bob:hunter2@host", "http://bob:hunter2@host/", "amqp://bob:hunter2@host:99999/",
                "amqp://bob:hunter2@h1,,h2/", "amqp://bob:1/hunter2@host",
                "amqp://bob:1?hunter2@host", "amqp://bob:hunter2%zz@host",
                "kafka://bob:hunter2@host?tsl=true", "amqp://bob:hunter2@host/a/b",
                "kafka://hunter2@host")) {
            BadSettings bad = assertThrows(BadSettings.class, () -> BrokerUrl.parse(url), url);
            assertFalse(bad.getMessage().contains("hunter2"), bad.getMessage());
            assertTrue(bad.getMessage().contains("broker_url"), bad.getMessage());
        }
        assertFalse(BrokerUrl.parse("amqp://bob:hunter2@host").toString().contains("hunter2"));
    }

    @Test
    void allMistakesAreReportedAtOnce() {
        BadSettings bad = assertThrows(BadSettings.class, () -> HintSettings.from(
                Map.of(
                        "JOBWIRE_BROKER_URL", "amqp://bob:secret@elsewhere",
                        "JOBWIRE_ENGINE_LANE", "two words",
                        "JOBWIRE_AMQP_PREFIX", "amq.mine",
                        "JOBWIRE_HINT_MAX_AGE", "soon",
                        "JOBWIRE_BROKER_TLS_KEY", "client.key"),
                "flowable"));
        assertEquals(5, bad.mistakes().size(), bad.getMessage());
    }

    @Test
    void theEnvironmentIsReadAsTheProgramReadsIt() {
        assertTrue(HintSettings.from(Map.of(), "flowable").isEmpty());
        HintSettings settings = HintSettings.from(
                        Map.of(
                                "JOBWIRE_BROKER_URL", "kafka://localhost/billing",
                                "JOBWIRE_HINT_MAX_AGE", "500ms",
                                "JOBWIRE_KAFKA_HINTS_PER_MESSAGE", "3"),
                        "camunda")
                .orElseThrow();
        assertEquals("billing", settings.prefix());
        assertEquals("camunda", settings.lane());
        assertEquals(500, settings.hintMaxAge().toMillis());
        assertEquals(3, settings.hintsPerMessage());
    }
}
